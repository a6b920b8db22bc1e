"""A process that holds two copies of the kubelet's protocols: kdp's, and one that another library registered.

Started by test_private_pool.py as ``two_libraries.py DESCRIPTOR_SET ORDER MUTANT``. It ends with 0 if both copies are
in place and work. The mutants undo one half each of what keeps kdp apart, to show that the test would notice.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.internal import builder
from google.protobuf.message import Message

from kdp.proto import _pool

MODULES = (
    "deviceplugin_v1beta1",
    "dra_v1",
    "dra_v1beta1",
    "drahealth_v1",
    "pluginregistration_v1",
    "podresources_v1",
    "pods_v1alpha1",
)


def load_kdp() -> None:
    """Import kdp's generated modules."""
    for module in MODULES:
        importlib.import_module(f"kdp.proto.{module}_pb2")


def load_other(path: Path) -> None:
    """Do what the generated code of another library does: register in the default pool."""
    files = FileDescriptorSet.FromString(path.read_bytes())
    for file in files.file:
        descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
        # Pure Python builds a file's descriptors on the first look at it.
        descriptor_pool.Default().FindFileByName(file.name)


def device_list(message: type[Message]) -> bytes:
    """Serialise the same list with whichever copy it is."""
    listing = message()
    device = listing.devices.add()  # type: ignore[attr-defined]
    device.ID, device.health = "widget-0", "Healthy"
    device.topology.nodes.add().ID = 1
    return listing.SerializeToString()


def main(path: str, order: str, mutant: str) -> None:
    """Load both in the given order and use both."""
    if mutant == "default-pool":
        _pool.POOL = descriptor_pool.Default()
    elif mutant == "default-symbols":
        setattr(_pool, "build", builder.BuildTopDescriptorsAndMessages)  # noqa: B010
    steps = [lambda: load_other(Path(path)), load_kdp]
    for step in steps if order == "other-first" else reversed(steps):
        step()

    ours = importlib.import_module("kdp.proto.deviceplugin_v1beta1_pb2").ListAndWatchResponse
    name = ours.DESCRIPTOR.full_name
    theirs = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))
    if ours is theirs or ours.DESCRIPTOR.file.pool is theirs.DESCRIPTOR.file.pool:
        raise SystemExit("both copies are the same: nothing was tried")
    if device_list(ours) != device_list(theirs):
        raise SystemExit("the two copies write different bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
