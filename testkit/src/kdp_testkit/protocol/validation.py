"""What the kubelet checks before it believes a plugin, in the kubelet's words.

Everything here is written from the contract alone and shares no code with `kdp.model.names`: a rule that kdp got wrong
must be refused here. The texts are what a plugin receives and has to classify by (contract sections 2.2, 3 and
6.3), so they are exact to the letter.

Values only: no I/O, no state.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SUPPORTED_VERSIONS: Final = ("v1beta1",)
HEALTHY: Final = "Healthy"
DEVICE_PLUGIN_TYPE: Final = "DevicePlugin"

# Contract section 0.1; seconds, but for the length of a path.
DIAL_TIMEOUT: Final = 10.0
PRE_START_TIMEOUT: Final = 30.0
INFO_TIMEOUT: Final = 1.0
NOTIFY_TIMEOUT: Final = 5.0
STOP_GRACE_PERIOD: Final = 300.0
MAX_SOCKET_PATH_BYTES: Final = 107

_QUOTA_PREFIX: Final = "requests."
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

# grpc-go spells the codes in its errors' texts; the specification's names are in capitals.
_GO_CODES: Final = {"CANCELLED": "Canceled", "OK": "OK"}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def is_extended_resource(name: str) -> bool:
    """Tell whether the kubelet takes ``name`` for an extended resource (contract section 2.2)."""
    if "/" not in name or "kubernetes.io/" in name or name.startswith(_QUOTA_PREFIX):
        return False
    # The rule of quota names is applied to the name with the quota's prefix before it.
    prefix, _, local = (_QUOTA_PREFIX + name).partition("/")
    if len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix):
        return False
    return len(local) <= 63 and _NAME.fullmatch(local) is not None


def version_error(version: str) -> str | None:
    """Return the kubelet's refusal of this API version, or None."""
    if version in SUPPORTED_VERSIONS:
        return None
    supported = " ".join(_quoted(known) for known in SUPPORTED_VERSIONS)
    return f"requested API version {_quoted(version)} is not supported by kubelet. Supported version is [{supported}]"


def resource_name_error(name: str) -> str | None:
    """Return the kubelet's refusal of this resource name, or None."""
    return None if is_extended_resource(name) else f"the ResourceName {_quoted(name)} is invalid"


def validation_error(name: str, versions: Sequence[str]) -> str | None:
    """Return why the plugin watcher's validation refuses a plugin, or None (contract section 3)."""
    if not set(versions) & set(SUPPORTED_VERSIONS):
        return (
            f"manager version, {SUPPORTED_VERSIONS[0]}, is not among plugin supported versions [{' '.join(versions)}]"
        )
    invalid = resource_name_error(name)
    return f"invalid name of device plugin socket: {invalid}" if invalid else None


def rpc_error(code: str, detail: str) -> str:
    """Spell a failed call as grpc-go does; ``code`` is the specification's name, for example ``UNAVAILABLE``."""
    spelled = _GO_CODES.get(code) or "".join(word.capitalize() for word in code.split("_"))
    return f"rpc error: code = {spelled} desc = {detail}"
