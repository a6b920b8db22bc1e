"""The descriptor pool of kdp's own messages, and how their classes are made.

The kubelet's protocols carry names as common as ``v1.CDIDevice``, and protobuf's default pool is one for the whole
process: a second library with a copy of the same protocols makes the import of whichever comes later fail. Therefore
the generated modules put their descriptors here, and their classes come from `build`.

The rule that keeps it honest: nothing in ``kdp.proto`` touches the default pool, nor the default symbol database,
which writes into that pool too where protobuf runs in pure Python (Alpine has no compiled wheel).

Where protobuf's C library does the work, its pool is taken from it directly: protobuf's own module of that name loads
the whole pure Python implementation beside it, which took a twentieth of a plugin's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor as _descriptor
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor
    from google.protobuf.descriptor_pool import DescriptorPool

_LIBRARY: Any = getattr(_descriptor, "_message", None)
"""The C library; None: protobuf runs in pure Python."""


def _new_pool() -> DescriptorPool:
    if _LIBRARY is not None:
        pool: DescriptorPool = _LIBRARY.DescriptorPool()
        return pool
    from google.protobuf.descriptor_pool import DescriptorPool

    return DescriptorPool()


def _class_of(descriptor: Descriptor, module: str) -> Any:
    if _LIBRARY is not None:
        return _LIBRARY.MessageMeta(descriptor.name, (Message,), {"DESCRIPTOR": descriptor, "__module__": module})
    from google.protobuf import message_factory

    made = message_factory.GetMessageClass(descriptor)
    made.__module__ = module
    return made


POOL = _new_pool()


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
        _name(descriptor, "", namespace)
        namespace[name] = _class_of(descriptor, module)
    for name, service in file.services_by_name.items():
        namespace[f"_{name.upper()}"] = service


def _name(descriptor: Descriptor, prefix: str, namespace: dict[str, object]) -> None:
    """Give a message's descriptor, and those of the messages and enums in it, their ``_NAME`` globals."""
    name = f"{prefix}_{descriptor.name.upper()}"
    namespace[name] = descriptor
    for enum in descriptor.enum_types:
        namespace[f"{name}_{enum.name.upper()}"] = enum
    for nested in descriptor.nested_types:
        _name(nested, name, namespace)
