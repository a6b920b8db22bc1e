"""Why a failed check is a fault of the plugin: what the kubelet does, with its source and the contract's section.

The facts were read in the source of the version that the links name. The contract marks those that the real device
managers of tests/node have shown as seen.
"""

from __future__ import annotations

from typing import Final

__all__ = ["EVIDENCE"]

_MANAGER: Final = "cm/devicemanager/manager.go"
_SERVER: Final = "cm/devicemanager/plugin/v1beta1/server.go"
_HANDLER: Final = "cm/devicemanager/plugin/v1beta1/handler.go"
_OPERATIONS: Final = "pluginmanager/operationexecutor/operation_generator.go"
_RECONCILER: Final = "pluginmanager/reconciler/reconciler.go"


def _fact(text: str, function: str, file: str, line: int, section: str, version: str = "v1.37.1") -> str:
    url = f"https://github.com/kubernetes/kubernetes/blob/{version}/pkg/kubelet/{file}#L{line}"
    return f"{text} ([`{function}`]({url}), section [{section}](kubelet.md#{section}))"


_ENDS: Final = (
    "When the stream ends, the kubelet drops its client, marks all devices unhealthy, and does not dial again",
    ("runClient", _HANDLER, 133),
)
_STARTS: Final = ("CleanupPluginDirectory", _MANAGER, 191)
_LISTENS: Final = ("Start", _SERVER, 86)
_REGISTERS: Final = ("Register", _SERVER, 159)
_ADMITS: Final = ("devicesToAllocate", _MANAGER, 604)
_RECORDS: Final = ("PluginConnected", _MANAGER, 227)

EVIDENCE: Final = {
    14: _fact(_ENDS[0], *_ENDS[1], "5"),
    15: _fact(
        "The kubelet answers Register first and opens the stream afterwards, so the answer proves no stream",
        *("connectClient", _HANDLER, 77),
        "2.1",
    ),
    16: _fact(
        "Each Register makes a connection, and up to 1.36 each superseded one leaks",
        *("connectClient", _HANDLER, 77),
        "2.5",
    ),
    17: _fact(
        "A kubelet that starts refuses each pod whose resource is not registered yet, and the pod is Failed for good",
        *_ADMITS,
        "4.6",
    ),
    19: _fact("Each start binds a new socket, whose inode may be the old one", *_LISTENS, "4.4"),
    20: _fact("The socket exists before it listens, and pods are admitted soon after", *_LISTENS, "4.4"),
    21: _fact("A kubelet that ended leaves its socket behind; the next one removes it when it starts", *_STARTS, "4.3"),
    22: _fact("The kubelet makes the socket late in its start, after its plugins may run", *_LISTENS, "4.1"),
    23: _fact("A new kubelet announces itself by nothing but its socket", *_LISTENS, "4.4"),
    24: _fact(
        "The kubelet makes the directory again if it is gone; a pod's mount keeps the deleted one", *_LISTENS, "4.4"
    ),
    26: _fact(
        "The kubelet refuses a Register of a path that it has on record, or makes a second connection up to 1.36",
        *_RECORDS,
        "2.5",
    ),
    27: _fact("The kubelet dials the socket by its path, which must exist at the next Register", *_REGISTERS, "2.1"),
    28: _fact("An unsupported version is an error of this call only; the kubelet serves on", *_REGISTERS, "2.2"),
    29: _fact("An invalid name is an error of this call only; the kubelet serves on", *_REGISTERS, "2.2"),
    30: _fact(
        "If dialing the plugin fails, the kubelet forgets it and does not try again",
        *("connectClient", _HANDLER, 77),
        "2.2",
    ),
    31: _fact("`device plugin already connected` is returned for the same path each time", *_RECORDS, "2.5"),
    37: _fact(
        "Any reply without an error starts the container, with the devices of the reply or without one",
        *("allocateContainerResources", _MANAGER, 861),
        "6.3",
    ),
    51: _fact(
        "The kubelet calls by the options that it got at the registration",
        *("callGetPreferredAllocationIfAvailable", _MANAGER, 1053),
        "7",
    ),
    57: _fact("Only a kubelet that starts removes a socket that was left behind", *_STARTS, "4.3"),
    59: _fact("A path that is still on record is refused, so a killed process's name is not safe", *_RECORDS, "2.5"),
    60: _fact(
        "The kubelet finds a plugin by its path, and lets another instance take over under a path of its own",
        *("PluginDisconnected", _MANAGER, 256),
        "2.5",
    ),
    61: _fact(
        "Up to 1.36 the end of the old stream closes the client on record, which is the new instance's",
        *("runClient", _HANDLER, 122),
        "2.5",
        "v1.36.3",
    ),
    63: _fact(
        "Both instances' lists feed one table, and the last message stays in force",
        *("genericDeviceUpdateCallback", _MANAGER, 293),
        "2.5",
    ),
    66: _fact(
        "The watcher reports the failure by NotifyRegistrationStatus, and asks the socket again later or never",
        *("GenerateRegisterPluginFunc", _OPERATIONS, 78),
        "3",
    ),
    68: _fact(
        "The watcher compares sockets by path and time of creation, and does not see that a stream ended",
        *("reconcile", _RECONCILER, 110),
        "3",
    ),
}
