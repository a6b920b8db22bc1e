"""The node's labels, named as GPU Feature Discovery names them, so that pods' selectors need not change.

They are about what pods can ask for: with ``mig=single`` the count, product and memory are those of the instances. Of a
node whose GPUs differ, what they differ in is no label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import kdp

from .mig import can_be_divided
from .nvml import ask, pynvml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .options import Options

_DOMAIN: Final = "nvidia.com"


def labels_of(devices: Sequence[kdp.Device], options: Options, handles: Iterable[Any]) -> dict[str, str]:
    """Return the labels. Blocks for NVML.

    Args:
        devices: What was discovered.
        options: The admin's.
        handles: NVML's, of the GPUs that answer.

    Raises:
        kdp.NotReady: The driver is gone.
    """
    held: dict[str, list[kdp.Device]] = {}
    for device in devices:
        if device.exists:
            held.setdefault(device.resource or options.resource, []).append(device)
    found = {name: value for resource, members in held.items() for name, value in _of_resource(resource, members)}
    if devices:
        found |= {f"{_DOMAIN}/{name}": value for name, value in (*_versions(), *_of_node(options, handles)) if value}
    if options.mps and options.resource in held:
        # A GPU without MPS is another thing to whoever measures: GPU Feature Discovery marks the product, too.
        found |= {f"{options.resource}.replicas": str(options.mps), f"{options.resource}.sharing-strategy": "mps"}
        if product := found.get(f"{options.resource}.product"):
            found[f"{options.resource}.product"] = kdp.label_value(f"{product}-SHARED")
    return found


def _of_resource(resource: str, devices: Sequence[kdp.Device]) -> Iterable[tuple[str, str]]:
    """Return what is to be said of one resource; the parts of a GPU that is shared by MPS count as one."""
    are_instances = any("profile" in device.attributes for device in devices)
    told = [_facts(device.attributes) for device in devices]
    yield f"{resource}.count", str(len(devices) if are_instances else len({device.unit for device in devices}))
    yield f"{resource}.present", "true"
    for name in told[0]:
        values = {facts.get(name, "") for facts in told}
        if len(values) == 1 and (value := values.pop()):
            yield f"{resource}.{name}", value


def _facts(attributes: Mapping[str, Any]) -> dict[str, str]:
    product, profile = attributes.get("product", ""), attributes.get("profile")
    major, _, rest = str(attributes.get("compute", "")).partition(".")
    facts: dict[str, Any] = {
        "product": product and (f"{product}-MIG-{profile}" if profile else product),
        "memory": attributes.get("memory", ""),
        "family": attributes.get("family", ""),
        "compute.major": major,
        "compute.minor": rest.partition(".")[0],
        "multiprocessors": attributes.get("multiprocessors", ""),
        "slices.ci": attributes.get("slices", ""),
    }
    return {name: kdp.label_value(str(value)) for name, value in facts.items()}


def _versions() -> Iterable[tuple[str, str]]:
    """Return the versions of the driver and of the CUDA that it brings, under the names of today and of before."""
    driver: str = ask(pynvml.nvmlSystemGetDriverVersion) or ""
    parts = [*driver.split("."), "", ""]
    for new, old, value in zip(("major", "minor", "revision"), ("major", "minor", "rev"), parts, strict=False):
        yield f"cuda.driver-version.{new}", kdp.label_value(value)
        yield f"cuda.driver.{old}", kdp.label_value(value)
    yield "cuda.driver-version.full", kdp.label_value(driver)
    if cuda := ask(pynvml.nvmlSystemGetCudaDriverVersion_v2):
        major, minor = str(cuda // 1000), str(cuda % 1000 // 10)
        for name, value in (("major", major), ("minor", minor)):
            yield f"cuda.runtime-version.{name}", value
            yield f"cuda.runtime.{name}", value
        yield "cuda.runtime-version.full", f"{major}.{minor}"


def _of_node(options: Options, handles: Iterable[Any]) -> Iterable[tuple[str, str]]:
    yield "mig.capable", str(any(can_be_divided(handle) for handle in handles)).lower()
    if options.mig != "none":
        yield "mig.strategy", options.mig
