"""The descriptor pool of kdp's own messages, and how their classes are made.

The kubelet's protocols carry names as common as ``v1.CDIDevice``, and protobuf's default pool is one for the whole
process: a second library with a copy of the same protocols makes the import of whichever comes later fail. Therefore
the generated modules put their descriptors here, and their classes come from `build`.

The rule that keeps it honest: nothing in ``kdp.proto`` touches the default pool, nor the default symbol database,
which writes into that pool too where protobuf runs in pure Python (Alpine has no compiled wheel).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

POOL = DescriptorPool()


def build(file: FileDescriptor, module: str, namespace: dict[str, object]) -> None:
    """Put the classes and enums of a file into the namespace of its generated module.

    It does what protobuf's own builder does for these files, without telling the default symbol database. The
    ``_NAME`` globals are what the generated code's last lines refer to.

    Args:
        file: The file, already in `POOL`.
        module: The generated module's name; the classes say that they come from there.
        namespace: The generated module's globals.
    """
    for name, enum in file.enum_types_by_name.items():
        namespace[f"_{name.upper()}"] = enum
        namespace[name] = EnumTypeWrapper(enum)
        for value in enum.values:
            namespace[value.name] = value.number
    for name, descriptor in file.message_types_by_name.items():
        message = message_factory.GetMessageClass(descriptor)
        message.__module__ = module
        namespace[name] = message
    for name, service in file.services_by_name.items():
        namespace[f"_{name.upper()}"] = service
