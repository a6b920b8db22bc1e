"""The series that have a value for each device: what was measured, and which pod holds it.

They are most of a scrape. The event loop makes no copy of them: a `Reading` refers to what was measured and to who
holds what, and these values do not change afterwards. `text_of_devices` makes their text in the thread that answers. It
does without prometheus-client, which makes an object of each value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

import attrs

from ..errors import printable
from . import series

if TYPE_CHECKING:  # no annotation of these classes is looked at
    from collections.abc import Iterable, Mapping  # noqa: TC004

    from ..kubelet.podresources import Holder  # noqa: TC004
    from ..supervision.measuring import Measured  # noqa: TC004
    from .series import Series  # noqa: TC004

MOST_DEVICES: Final = 1024
"""Devices that are named with the pods that hold them."""

MOST_OF_NAME: Final = 253
"""Characters of a name; those of Kubernetes and of kdp's devices are not longer."""

NOBODY: Final = ("", "", "")
"""The container, namespace, and pod of a device that is free, or shared by several pods."""

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Pod = tuple[str, str, str]

_Write = Callable[[str, str, Pod | None], str]


@final
@attrs.frozen(eq=False)
class Held:
    """The devices of a resource that pods hold.

    Attributes:
        resource: The resource's label.
        holders: Each device's id with a container that has it.
        device_of: Returns the id of a replica's device, and any other id as it is.
    """

    resource: str
    holders: Iterable[tuple[str, Holder]]
    device_of: Callable[[str], str]


@final
@attrs.frozen(eq=False)
class MeasuredDevices:
    """What a backend measured.

    Attributes:
        of: The series of each measurement; None: it is not exported.
        values: What was measured, by device.
        resources: The label of each resource of the devices.
    """

    of: Mapping[str, Series | None]
    values: Mapping[str, Measured]
    resources: Mapping[str, str]


def text_of_devices(measured: Iterable[MeasuredDevices], held: Iterable[Held], *, names_pods: bool, mode: str) -> str:
    """Return the lines of all series of devices.

    Args:
        measured: What was measured.
        held: Who holds what.
        names_pods: Whether each device is named with the pod that holds it.
        mode: The process's mode, as ``dra``.
    """
    write = functools.partial(_labels, series.ALLOCATION.labels_in(mode)[0])
    pods: dict[str, Pod] = {}
    samples: dict[Series, dict[str, float]] = {}
    if names_pods:
        _add_holders(samples.setdefault(series.ALLOCATION, {}), held, pods, write)
    for each in measured:
        _add_measured(samples, each, pods if names_pods else None, write)
    lines: list[str] = []
    for of, found in samples.items():
        if found:
            name = of.name
            lines += (f"# HELP {name} {_help(of.help)}", f"# TYPE {name} {of.kind}")
            lines += [f"{name}{labels} {value!r}" for labels, value in found.items()]
    return "\n".join((*lines, ""))


def _add_holders(found: dict[str, float], held: Iterable[Held], pods: dict[str, Pod], write: _Write) -> None:
    """Add the pods of devices, and say in ``pods`` whose each device is."""
    for each in held:
        resource = _shown(each.resource)
        for device_id, holder in each.holders:
            if len(found) >= MOST_DEVICES:
                return
            device = each.device_of(device_id)
            pod = (_shown(holder.container), _shown(holder.namespace), _shown(holder.pod))
            known = pods.get(device, pod)
            if known != pod:
                known = ("", *pod[1:]) if known[1:] == pod[1:] else NOBODY
            pods[device] = known
            found[write(_shown(device), resource, pod)] = 1.0


def _add_measured(
    samples: dict[Series, dict[str, float]], measured: MeasuredDevices, pods: Mapping[str, Pod] | None, write: _Write
) -> None:
    """Add what was measured; of two devices that are shown alike, the larger value."""
    columns = {name: samples.setdefault(of, {}) for name, of in measured.of.items() if of is not None}
    resources = {name: _shown(label) for name, label in measured.resources.items()}
    for device_id, each in measured.values.items():
        pod = None if pods is None else pods.get(device_id, NOBODY)
        labels = write(_shown(device_id), resources[each.resource], pod)
        for name, value in each.values.items():
            if (column := columns.get(name)) is not None:
                column[labels] = value if labels not in column else max(value, column[labels])


def _labels(subject: str, device: str, resource: str, pod: Pod | None) -> str:
    """Return labels as Prometheus's text format has them; ``subject`` is the label of the resource."""
    if pod is None:
        return f'{{device="{device}",{subject}="{resource}"}}'
    container, namespace, name = pod
    return f'{{container="{container}",device="{device}",namespace="{namespace}",pod="{name}",{subject}="{resource}"}}'


def _shown(text: str) -> str:
    """Return the value of a label, printable and escaped."""
    shown = printable(text, MOST_OF_NAME)
    return shown.translate(_ESCAPED) if "\\" in shown or '"' in shown else shown


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
