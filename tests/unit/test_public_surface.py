"""The names that kdp promises. A change here is a change of the public interface: changelog, docs, and a reason."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import kdp

SURFACE: dict[str, list[str]] = {
    "kdp": [
        "Allocation",
        "AllocationError",
        "BindingConditions",
        "CdiHook",
        "Claim",
        "ConfigurationError",
        "ContainerEdits",
        "Device",
        "DeviceBackend",
        "DeviceNode",
        "Health",
        "HealthPolicy",
        "InvalidValueError",
        "KdpError",
        "Measurement",
        "Mount",
        "Needs",
        "NetworkData",
        "NoHardware",
        "NotReady",
        "PreferRequest",
        "Quantity",
        "Reporter",
        "RequestPolicy",
        "Taint",
        "Version",
        "WatchedFile",
        "default_labels",
        "label_value",
        "run",
        "serve",
    ],
    "kdp.cdi": [
        "CDI_DIRECTORIES",
        "CdiDevice",
        "CdiDirectory",
        "CdiEdits",
        "CdiMount",
        "CdiNetDevice",
        "CdiNode",
        "CdiRegistry",
        "CdiSpec",
        "cdi_device_name",
        "cdi_kind",
        "check_spec",
        "parse_spec",
        "render_device",
    ],
    "kdp.hardware": [
        "Directory",
        "DirectoryWatch",
        "Host",
        "IommuGroup",
        "LastKnown",
        "LinkEvent",
        "LinkWatch",
        "NetInterface",
        "NodeFiles",
        "PathWatch",
        "PciFunction",
        "PciLink",
        "Reading",
        "Threshold",
        "Uevent",
        "UeventWatch",
        "attributes_of",
    ],
    "kdp.storage": ["parse_json", "read_text"],
    "kdp.command.yaml_reading": ["compose", "parse_yaml"],
    "kdp.supervision.health": ["Condition", "DeviceHealth", "HealthChange", "HealthMonitor", "HealthState"],
    "kdp.allocation": [
        "Choice",
        "Override",
        "POLICIES",
        "Policy",
        "Rival",
        "Sharing",
        "Term",
        "Topology",
        "choose",
        "explain",
        "links_of_matrix",
        "share",
    ],
    "kdp.kubelet": ["KubeletPaths", "KubeletState", "KubeletView", "KubeletWatch", "look"],
    "kdp.deviceplugin": ["DevicePlugin", "ManagerOptions", "PluginManager", "ResourceStatus", "Status"],
    "kdp.testing": [
        "AdmissionError",
        "AdmittedContainer",
        "AdmittedPod",
        "CallError",
        "Container",
        "ContainerReply",
        "ContainerStartError",
        "DEFAULT_PROFILE",
        "DeviceSpec",
        "DialError",
        "DraPod",
        "Event",
        "EventLog",
        "Faults",
        "KubeletPanic",
        "Levers",
        "ListedDevice",
        "MountSpec",
        "NodeStatus",
        "NotReached",
        "PROFILES",
        "PluginConnection",
        "PluginInfo",
        "PluginOptions",
        "PluginStream",
        "Pod",
        "PodStartError",
        "PodStopError",
        "Profile",
        "RecordingError",
        "RegisterFault",
        "ReplayDiffers",
        "ScenarioError",
        "SimulatedCluster",
        "SimulatedKubelet",
        "SysfsTree",
        "check_backend",
        "events",
        "replay",
    ],
}

# What a public signature must not mention: users see our values, never the wire's.
WIRE = re.compile(r"\b(grpc|google|protobuf|\w*_pb2)\b")


def public_members(owner: type) -> Iterator[tuple[str, object]]:
    """The members that a class defines itself under a public name, as functions where they are wrapped."""
    for name, member in vars(owner).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield name, member.fget
        elif isinstance(member, (classmethod, staticmethod)):
            yield name, member.__func__
        elif inspect.isfunction(member):
            yield name, member


def own_objects(module: str) -> Iterator[tuple[str, object]]:
    """Every public class, function and method of a module, by its full name."""
    for name in SURFACE[module]:
        thing = getattr(importlib.import_module(module), name)
        if not (inspect.isclass(thing) or inspect.isroutine(thing)):
            continue
        yield f"{module}.{name}", thing
        if inspect.isclass(thing):
            for member_name, member in public_members(thing):
                yield f"{module}.{name}.{member_name}", member


def test_a_module_exports_exactly_what_is_promised() -> None:
    for module, promised in SURFACE.items():
        exported = importlib.import_module(module).__all__
        assert sorted(exported) == promised
        assert len(set(exported)) == len(exported)


def test_every_public_name_explains_itself() -> None:
    for module in SURFACE:
        assert not [name for name, thing in own_objects(module) if not inspect.getdoc(thing)]
        assert importlib.import_module(module).__doc__


def test_no_public_signature_shows_the_wire() -> None:
    """Annotations are text (``from __future__ import annotations``), so nothing needs to be resolved."""
    shown = {
        name: found
        for module in SURFACE
        for name, thing in own_objects(module)
        if (found := [text for text in map(str, getattr(thing, "__annotations__", {}).values()) if WIRE.search(text)])
    }
    assert not shown


def test_no_two_classes_have_one_name() -> None:
    """A reader who meets ``Answer`` need not ask which of five it is. ``Status`` is public in two modules."""
    places: dict[str, set[str]] = {}
    package = Path(kdp.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(str(path.relative_to(package)))
    found = {name: where for name, where in places.items() if len(where) > 1}
    assert found == {"Status": {"deviceplugin/manager.py", "dra/driver.py"}}
