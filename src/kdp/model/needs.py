"""`Needs`: what the plugin's own container must be given on a node."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, final

import attrs

from ..errors import InvalidValueError
from ..startup import shown
from .names import check_label_name, check_label_value

if TYPE_CHECKING:
    from collections.abc import Iterable


def _tuple(values: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    return tuple(os.fspath(value) for value in values)


def _capabilities(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.upper().removeprefix("CAP_") for name in names)


def _check_capabilities(_needs: object, _field: object, names: tuple[str, ...]) -> None:
    for name in names:
        if not name.isascii() or not name.replace("_", "").isalpha():
            raise InvalidValueError(f"capability {name!r}: must be a Linux capability's name; for example 'SYS_ADMIN'")


def _check_paths(_needs: object, field: attrs.Attribute[tuple[str, ...]], paths: tuple[str, ...]) -> None:
    for path in paths:
        if not path.startswith("/") or posixpath.normpath(path) != path:
            raise InvalidValueError(
                f"{field.name} {path!r}: must be an absolute path of the node without '..' or a slash at its end; "
                f"for example '/sys'"
            )


def _check_labels(_needs: object, _field: object, labels: tuple[str, ...]) -> None:
    for label in labels:
        name, equals, value = label.partition("=")
        if not equals:
            raise InvalidValueError(
                f"node_labels {label!r}: must be LABEL=VALUE; for example "
                f"'feature.node.kubernetes.io/pci-10de.present=true'"
            )
        check_label_name(name)
        check_label_value(value)


def _check_nodes(needs: object, field: attrs.Attribute[tuple[str, ...]], nodes: tuple[str, ...]) -> None:
    _check_paths(needs, field, tuple(node for node in nodes if not node.startswith(("char-", "block-"))))


@final
@attrs.frozen(kw_only=True)
class Needs:
    """What the plugin's own container needs of the node, for ``kdp manifests``.

    Attributes:
        host_paths: Directories of the node that the backend reads, as ``/sys`` or a driver's directory. A pod waits
            until its node has all of them. Of a file name the directory: a mounted file stays the one that it was.
        optional_paths: Directories that only some nodes have, and that the backend reads where they are. Kubernetes
            starts no pod without a directory that the pod names, so a pod has one of these only if the administrator
            names it (``kdp manifests --optional-path``).
        writable_paths: Directories of the node that the backend writes to. For the files of a device below
            ``/sys/class`` and ``/sys/bus`` name that directory: ``/sys/devices``, where its links lead, is writable
            then, and the rest of ``/sys`` is not.
        opened_nodes: Device nodes that the backend itself opens, as ``/dev/hwrng``; to look at one needs no right.
            Kubernetes has no right for one node: such a container is privileged. A systemd unit has one. Nodes that
            may not be there where the manifest is written are named by their group in ``/proc/devices``, as
            ``char-nvidia*``.
        injected_nodes: The same, of nodes that a runtime as NVIDIA's puts into the plugin's own container: that needs
            no right for them, a systemd unit does.
        capabilities: Linux capabilities, as ``SYS_ADMIN``; normally none.
        host_network: Whether it must run in the node's network namespace.
        host_pid: Whether it must see the node's processes, as who asks for the processes on a device.
        node_labels: Labels of nodes that have the hardware, as ``LABEL=VALUE``: a pod runs where the node has one of
            them. Empty: on all nodes. The administrator can take that away (``kdp manifests --node-selector none``).

    Raises:
        InvalidValueError: A path is not absolute, or a capability or a label no name of one.
    """

    __repr__ = shown

    host_paths: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_check_paths)
    optional_paths: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_check_paths)
    writable_paths: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_check_paths)
    opened_nodes: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_check_nodes)
    injected_nodes: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_check_nodes)
    capabilities: tuple[str, ...] = attrs.field(default=(), converter=_capabilities, validator=_check_capabilities)
    host_network: bool = False
    host_pid: bool = False
    node_labels: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_check_labels)
