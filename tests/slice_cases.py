"""ResourceSlices that are wrong in one place each, to be judged by kdp and by a real API server.

A case is a change to a good slice, and the fields that are wrong afterwards. `STRICTER` are those that kdp refuses and
the server takes: what kdp has against them is told in ``kdp.dra.publishing.validation``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

import attrs

__all__ = ["BAD", "STRICTER", "Case", "good"]

Object = dict[str, Any]
DEVICE: Final = "spec.devices[0]"


def good(name: str = "good") -> Object:
    """Return a slice with one device that has a bit of everything."""
    device = {
        "name": "gpu-0",
        "attributes": {"model": {"string": "A"}, "example.com/index": {"int": 0}, "driver": {"version": "1.2.3"}},
        "capacity": {"memory": {"value": "80Gi"}},
    }
    pool = {"name": "node0", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": "gpu.example.com", "pool": pool, "nodeName": "node0", "devices": [device]},
    }


@attrs.frozen
class Case:
    """One change to a good slice.

    Attributes:
        name: What is wrong.
        change: Makes it wrong.
        paths: The fields that the server, and kdp, name then.
    """

    name: str
    change: Callable[[Object], object]
    paths: tuple[str, ...]

    @property
    def item(self) -> Object:
        """The slice."""
        item = copy.deepcopy(good(f"case-{abs(hash(self.name)) % 10**9}"))
        self.change(item)
        return item


def _spec(name: str, paths: str | tuple[str, ...], /, **values: Any) -> Case:
    """A case that sets fields of the spec; None takes one away."""

    def change(item: Object) -> None:
        for key, value in values.items():
            item["spec"].pop(key, None)
            if value is not None:
                item["spec"][key] = value

    return Case(name, change, (paths,) if isinstance(paths, str) else paths)


def _pool(name: str, path: str, /, **values: Any) -> Case:
    return Case(name, lambda item: item["spec"]["pool"].update(values), (path,))


def _device(name: str, paths: str | tuple[str, ...], /, **values: Any) -> Case:
    """A case that sets fields of the device."""
    found = (paths,) if isinstance(paths, str) else paths
    return Case(name, lambda item: item["spec"]["devices"][0].update(values), tuple(f"{DEVICE}{p}" for p in found))


def _policy(name: str, paths: str | tuple[str, ...], /, **policy: Any) -> Case:
    capacity = {"memory": {"value": "10", "requestPolicy": policy}}
    found = (paths,) if isinstance(paths, str) else paths
    prefixed = tuple(f".capacity[memory].requestPolicy{path}" for path in found)
    return _device(name, prefixed, capacity=capacity, allowMultipleAllocations=True)


def _taints(name: str, paths: str | tuple[str, ...], *taints: Object) -> Case:
    return _device(name, paths, taints=list(taints))


def _devices(count: int, **more: Any) -> list[Object]:
    return [{"name": f"d{n}", **more} for n in range(count)]


def _sets(count: int, counters: int = 1) -> list[Object]:
    return [{"name": f"s{n}", "counters": {f"c{k}": {"value": "1"} for k in range(counters)}} for n in range(count)]


def _consumes(count: int, counters: int = 1) -> list[Object]:
    return [{"counterSet": each["name"], "counters": each["counters"]} for each in _sets(count, counters)]


def _strings(count: int, value: str = "x") -> Object:
    return {f"a{n}": {"string": value} for n in range(count)}


WORN: Final = {"key": "example.com/worn", "effect": "NoSchedule"}

BAD: Final = [
    Case("object name", lambda item: item["metadata"].update(name="Case"), ("metadata.name",)),
    _spec("no driver", "spec.driver", driver=""),
    _spec("driver with an underscore", "spec.driver", driver="gpu_.example.com"),
    _spec("driver too long", "spec.driver", driver=f"{'d' * 60}.com"),
    _pool("no pool name", "spec.pool.name", name=""),
    _pool("capitals in the pool name", "spec.pool.name", name="Node"),
    _pool("pool name ends with a slash", "spec.pool.name", name="a/"),
    _pool("count 0", "spec.pool.resourceSliceCount", resourceSliceCount=0),
    _pool("generation below 0", "spec.pool.generation", generation=-1),
    _spec("no nodes", "spec", nodeName=None),
    _spec("two kinds of nodes", "spec", allNodes=True),
    _spec("empty node name", ("spec", "spec.nodeName"), nodeName=""),
    _spec("node name with capitals", "spec.nodeName", nodeName="Node0"),
    _spec("allNodes false", ("spec", "spec.allNodes"), nodeName=None, allNodes=False),
    _spec(
        "two terms of nodes",
        "spec.nodeSelector.nodeSelectorTerms",
        nodeName=None,
        nodeSelector={
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in ("a", "b")
            ]
        },
    ),
    _spec("per device without nodes of the device", DEVICE, nodeName=None, perDeviceNodeSelection=True),
    _device("nodes of the device without per device", "", nodeName="node0"),
    _spec("counters and devices in one slice", "spec", sharedCounters=_sets(1)),
    _spec("129 devices", "spec.devices", devices=_devices(129)),
    _spec("65 devices with a taint", "spec.devices", devices=[{"name": "t", "taints": [WORN]}, *_devices(64)]),
    _spec(
        "65 devices with counters",
        "spec.devices",
        devices=[{"name": "t", "consumesCounters": _consumes(1)}, *_devices(64)],
    ),
    _spec("two devices of one name", "spec.devices[1]", devices=[{"name": "a"}, {"name": "a"}]),
    _device("device name with capitals", ".name", name="GPU-0"),
    _device("device name of 64 characters", ".name", name="d" * 64),
    _device("device name with a dot", ".name", name="a.b"),
    _device("no device name", ".name", name=""),
    _device("33 attributes", "", attributes=_strings(33), capacity={}),
    _device("32 attributes and a capacity", "", attributes=_strings(32)),
    _device("attribute with a dash", ".attributes", attributes={"a-b": {"int": 1}}),
    _device("attribute of 33 characters", ".attributes", attributes={"a" * 33: {"int": 1}}),
    _device("attribute without a domain", ".attributes", attributes={"/a": {"int": 1}}),
    _device("attribute without a name", ".attributes", attributes={"a.b/": {"int": 1}}),
    _device("attribute that starts with a digit", ".attributes", attributes={"1a": {"int": 1}}),
    _device("attribute with a domain that is too long", ".attributes", attributes={f"{'d' * 64}/a": {"int": 1}}),
    _device("attribute without a value", ".attributes[a]", attributes={"a": {}}),
    _device("attribute with two values", ".attributes[a]", attributes={"a": {"int": 1, "bool": True}}),
    _device("string of 65 bytes", ".attributes[a].string", attributes={"a": {"string": "x" * 65}}),
    _device("33 letters of 66 bytes", ".attributes[a].string", attributes={"a": {"string": "é" * 33}}),
    _device("version with a v", ".attributes[a].version", attributes={"a": {"version": "v1.2"}}),
    _device("version of two parts", ".attributes[a].version", attributes={"a": {"version": "1.2"}}),
    _device("version with a leading 0", ".attributes[a].version", attributes={"a": {"version": "1.0.0-01"}}),
    _device("version of 65 bytes", ".attributes[a].version", attributes={"a": {"version": f"1.0.0-{'a' * 59}"}}),
    _device("capacity with a dash", ".capacity", capacity={"a-b": {"value": "1"}}),
    _taints("17 taints", ".taints", *({"key": f"k{n}", "effect": "None"} for n in range(17))),
    _taints("taint without a key", ".taints[0].key", {"key": "", "effect": "NoSchedule"}),
    _taints("taint with a strange key", ".taints[0].key", {"key": "a b", "effect": "NoSchedule"}),
    _taints("taint with a strange value", ".taints[0].value", {**WORN, "value": "a b"}),
    _taints("taint with a value too long", ".taints[0].value", {**WORN, "value": "a" * 64}),
    _taints("taint without an effect", ".taints[0].effect", {"key": "a"}),
    _taints("taint with an unknown effect", ".taints[0].effect", {"key": "a", "effect": "Evict"}),
    _spec("9 counter sets", "spec.sharedCounters", devices=None, sharedCounters=_sets(9)),
    _spec("33 counters in a set", "spec.sharedCounters[0].counters", devices=None, sharedCounters=_sets(1, 33)),
    _spec(
        "counter set without a name",
        "spec.sharedCounters[0].name",
        devices=None,
        sharedCounters=[{**_sets(1)[0], "name": ""}],
    ),
    _spec(
        "counter set with capitals",
        "spec.sharedCounters[0].name",
        devices=None,
        sharedCounters=[{**_sets(1)[0], "name": "A"}],
    ),
    _spec(
        "counter set without counters", "spec.sharedCounters[0].counters", devices=None, sharedCounters=[{"name": "a"}]
    ),
    _spec(
        "counter with an underscore",
        "spec.sharedCounters[0].counters",
        devices=None,
        sharedCounters=[{"name": "a", "counters": {"b_c": {"value": "1"}}}],
    ),
    _spec("two counter sets of one name", "spec.sharedCounters[1]", devices=None, sharedCounters=_sets(1) * 2),
    _device("counters of 3 sets", ".consumesCounters", consumesCounters=_consumes(3)),
    _device("33 counters of a set", ".consumesCounters[0].counters", consumesCounters=_consumes(1, 33)),
    _device(
        "counters of no set",
        ".consumesCounters[0].counterSet",
        consumesCounters=[{**_consumes(1)[0], "counterSet": ""}],
    ),
    _device("no counters of a set", ".consumesCounters[0].counters", consumesCounters=[{"counterSet": "a"}]),
    _device("one set twice", ".consumesCounters[1]", consumesCounters=_consumes(1) * 2),
    _device(
        "5 binding conditions", ".bindingConditions", bindingConditions=list("abcde"), bindingFailureConditions=["f"]
    ),
    _device(
        "5 failure conditions",
        ".bindingFailureConditions",
        bindingConditions=["f"],
        bindingFailureConditions=list("abcde"),
    ),
    _device("binding conditions without failures", ".bindingFailureConditions", bindingConditions=["a"]),
    _device("failures without binding conditions", ".bindingConditions", bindingFailureConditions=["a"]),
    _device("a condition twice", ".bindingConditions[1]", bindingConditions=["a", "a"], bindingFailureConditions=["f"]),
    _device(
        "a condition of both kinds",
        ".bindingFailureConditions[0]",
        bindingConditions=["a"],
        bindingFailureConditions=["a"],
    ),
    _device("a strange condition", ".bindingConditions[0]", bindingConditions=["a b"], bindingFailureConditions=["f"]),
    _device(
        "policy of a device for one claim",
        ".capacity[memory].requestPolicy",
        capacity={"memory": {"value": "1", "requestPolicy": {"default": "1"}}},
    ),
    _policy("values and a range", "", default="1", validValues=["1"], validRange={"min": "1"}),
    _policy("values without a default", ".default", validValues=["1"]),
    _policy("range without a default", ".default", validRange={"min": "1"}),
    _policy("range without a min", ".validRange.min", default="1", validRange={"max": "2"}),
    _policy("default that is no value", ".validValues", default="3", validValues=["1", "2"]),
    _policy("values that fall", ".validValues[1]", default="1", validValues=["2", "1"]),
    _policy("a value twice", ".validValues[1]", default="1", validValues=["1", "1"]),
    _policy("a value above the capacity", ".validValues[1]", default="1", validValues=["1", "11"]),
    _policy("11 values", ".validValues", default="0", validValues=[str(n) for n in range(11)]),
    _policy("min above the capacity", ".validRange.min", default="11", validRange={"min": "11"}),
    _policy("default below min", ".validRange.default", default="1", validRange={"min": "2"}),
    _policy("default above max", ".validRange.default", default="3", validRange={"min": "1", "max": "2"}),
    _policy("max above the capacity", ".validRange.max", default="1", validRange={"min": "1", "max": "11"}),
    _policy(
        "max below min", (".validRange.default", ".validRange.max"), default="3", validRange={"min": "3", "max": "2"}
    ),
    _policy("step 0", ".validRange.step", default="1", validRange={"min": "1", "step": "0"}),
    _policy("a step beyond the capacity", ".validRange.step", default="2", validRange={"min": "2", "step": "9"}),
    _policy("default between steps", ".validRange.step", default="2", validRange={"min": "1", "step": "2"}),
    _policy("max between steps", ".validRange.step", default="1", validRange={"min": "1", "step": "2", "max": "4"}),
]

STRICTER: Final = [
    _spec("driver with capitals", "spec.driver", driver="Gpu.example.com"),
    _device("domain of an attribute with capitals", ".attributes", attributes={"Example.com/a": {"int": 1}}),
    _device("attribute with two slashes", ".attributes", attributes={"a/b/c": {"int": 1}}),
    _device("amount beyond 63 bits", ".capacity[a].value", capacity={"a": {"value": "10E"}}),
    _device("amount with ten decimals", ".capacity[a].value", capacity={"a": {"value": "0.0000000001"}}),
    _policy("default above the capacity", ".default", default="11"),
    _policy("a fraction in a range", ".validRange.step", default="1", validRange={"min": "1", "step": "500m"}),
    _policy("negative min", ".validRange.min", default="1", validRange={"min": "-1"}),
]
