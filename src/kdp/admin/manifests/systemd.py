"""A `Deployment` in the words of systemd: a unit for nodes whose plugins are no pods.

The same least privilege as the container's, by systemd's own means (systemd.exec(5), 247 and newer); here a right to
open one device node exists. The kubelet is neither required nor waited for: kdp waits for it, and outlives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import InvalidValueError
from .deployment import is_loopback, on_one_line
from .placement import check_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .deployment import Deployment

_LOCAL_ONLY: Final = ("IPAddressDeny=any", "IPAddressAllow=localhost")

_HARDENING: Final = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "ProtectProc=invisible",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "LockPersonality=yes",
    "MemoryDenyWriteExecute=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    *_LOCAL_ONLY,
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged @resources",
    "SystemCallErrorNumber=EPERM",
    "KeyringMode=private",
    "RemoveIPC=yes",
    "UMask=0022",
)

_HOMES: Final = ("/home", "/root", "/run/user")
_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108


def unit(deployment: Deployment, *, executable: str) -> str:
    """Return the unit's text.

    Args:
        deployment: Made for a process on the node itself.
        executable: The command ``kdp`` on the node, an absolute path.

    Raises:
        InvalidValueError: The executable's path is not absolute, a path has control characters, a node is not below
            ``/dev``, or the deployment's name is no DNS label.
    """
    check_label("name", deployment.name)
    if not executable.startswith("/"):
        raise InvalidValueError(
            f"executable {executable!r}: must be an absolute path on the node; for example '/usr/local/bin/kdp'"
        )
    # What it is given, and what its arguments name: the program, the class's file, files of parameters.
    places = [folder.path for folder in deployment.folders]
    places += [executable, deployment.target, *(option.rpartition("=")[2] for option in deployment.options)]
    arguments = ("run", deployment.target, *deployment.options)
    lines = [
        "[Unit]",
        f"Description=Kubernetes device plugin {deployment.name}",
        "After=local-fs.target systemd-udevd.service",
        # Tried for ever: what fails is outside of the process, or is told by its exit code.
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "# Ready: every resource has a stream of the kubelet's. That may take as long as the kubelet takes.",
        "Type=notify",
        "NotifyAccess=main",
        "TimeoutStartSec=infinity",
        "# Alive: the event loop answers. A hanging hook does not stop that.",
        "WatchdogSec=60",
        f"ExecStart={' '.join((_path(executable), *map(_argument, arguments)))}",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "Restart=always",
        "RestartSec=1",
        "# 2: the configuration is wrong; no restart cures that.",
        "RestartPreventExitStatus=2",
        "TimeoutStopSec=5",
        "OOMScoreAdjust=-997",
        "MemoryMax=96M",
        "# Measured with 16 resources, a slow allocation of each, and 16 clients: 13 tasks and 90 descriptors.",
        "TasksMax=128",
        "LimitNOFILE=1024",
        "",
        "# What it is given.",
        "User=root",
        *_writable(deployment),
        f"CapabilityBoundingSet={' '.join(f'CAP_{name}' for name in deployment.needs.capabilities)}",
        f"AmbientCapabilities={' '.join(f'CAP_{name}' for name in deployment.needs.capabilities)}",
        "DevicePolicy=closed",
        *_allowed(deployment),
        *(["ProtectHome=read-only"] if _is_any_below(places, _HOMES) else ["ProtectHome=yes"]),
        "",
        "# What it is not.",
        *(each for each in _HARDENING if each not in _too_much(deployment, places)),
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _writable(deployment: Deployment) -> Iterator[str]:
    """Tell the directories that it may write to.

    One that others make and that is not there yet fails the start, which is tried again each second: ignored, it would
    stay read-only for as long as the process lives. StateDirectory= and its kin would give the process what is there
    already, with another owner and mode (systemd.exec(5)), and it may be shared with others.
    """
    for folder in deployment.folders:
        if folder.writable:
            if folder.made:
                yield f"ExecStartPre=+/bin/mkdir -p {_argument(folder.path)}"
            yield f"ReadWritePaths={_path(folder.path)}"


def _allowed(deployment: Deployment) -> Iterator[str]:
    """Tell the device nodes that it may open."""
    nodes = (*deployment.needs.opened_nodes, *deployment.needs.injected_nodes)
    if nodes:
        yield "# A node that is missing at the start stays forbidden: restart the unit after you load a driver."
    for node in nodes:
        if not node.startswith(("/dev/", "char-", "block-")):
            raise InvalidValueError(
                f"node {node!r}: a systemd unit may open nodes below /dev only; expected such a node, or its group in "
                f"/proc/devices, as 'char-nvidia*'"
            )
        yield f"DeviceAllow={_path(node)} rw"


def _too_much(deployment: Deployment, places: Iterable[str]) -> Iterator[str]:
    """Tell what would hide something that it needs."""
    if deployment.needs.host_pid:
        yield "ProtectProc=invisible"
    if _is_any_below(places, _TEMPORARY):
        yield "PrivateTmp=yes"
    if deployment.http is not None and not is_loopback(deployment.http):
        yield from _LOCAL_ONLY


def _is_any_below(places: Iterable[str], folders: Iterable[str]) -> bool:
    return any(f"{place}/".startswith(f"{folder}/") for place in places for folder in folders)


def _argument(text: str) -> str:
    """Return an argument of a command, where systemd expands variables (systemd.service(5), "Command lines")."""
    return _word(text.replace("$", "$$"))


def _path(path: str) -> str:
    """Return a path.

    Raises:
        InvalidValueError: It does not print, and systemd knows no escapes for that in paths.
    """
    if not path.isprintable():
        raise InvalidValueError(
            f"path {path!r}: a systemd unit cannot name it; expected one without newlines and other control characters"
        )
    return _word(path)


def _word(text: str) -> str:
    """Return a word as systemd reads it (systemd.syntax(7), "Quoting"; systemd.unit(5), "Specifiers")."""
    escaped = on_one_line(text.replace("\\", "\\\\").replace('"', '\\"')).replace("%", "%%")
    return f'"{escaped}"' if escaped != text or not text or any(c in " ;'$" for c in text) else text
