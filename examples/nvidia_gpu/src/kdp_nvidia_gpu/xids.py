"""What the driver's errors (XIDs) mean for a GPU's health: a table, and what the admin changes in it.

The classes follow what NVIDIA's plugin ignores and what GKE's makes a node condition of; an XID that is not here counts
as fatal, as with NVIDIA's. The names are those of NVIDIA's catalogue of XID errors.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import attrs

import kdp


class Severity(enum.Enum):
    """What happens to the GPU when the driver reports such an error."""

    APPLICATION = "application"
    """Nothing: a program did something wrong, the GPU is well."""
    NOTICE = "notice"
    """It is looked at again at once; the XID itself says nothing about its health."""
    FATAL = "fatal"
    """It is Unhealthy until it has recovered."""
    CONDITION = "condition"
    """As fatal, and worth a node condition: the log line says so."""


@attrs.frozen
class Xid:
    """One kind of error.

    Attributes:
        code: The driver's number.
        name: What it means.
        severity: What happens to the GPU.
    """

    code: int
    name: str
    severity: Severity


_A, _N, _F, _C = Severity.APPLICATION, Severity.NOTICE, Severity.FATAL, Severity.CONDITION

XIDS: Mapping[int, Xid] = {
    code: Xid(code, name, severity)
    for code, name, severity in (
        (13, "graphics engine exception", _A),
        (31, "GPU memory page fault", _A),
        (32, "invalid or corrupted push buffer stream", _F),
        (38, "driver firmware error", _F),
        (43, "GPU stopped processing", _A),
        (45, "preemptive cleanup, due to previous errors", _A),
        (48, "double bit ECC error", _C),
        (61, "internal micro-controller breakpoint or warning", _F),
        (62, "internal micro-controller halt", _F),
        (63, "row remapping or page retirement recorded", _C),
        (64, "row remapping or page retirement failed", _C),
        (68, "video decoder exception", _A),
        (69, "graphics engine class error", _F),
        (74, "NVLink error", _F),
        (79, "GPU has fallen off the bus", _C),
        (92, "high rate of single bit ECC errors", _F),
        (94, "contained ECC error", _F),
        (95, "uncontained ECC error", _F),
        (109, "context switch timeout", _A),
        (119, "GSP RPC timeout", _C),
        (120, "GSP error", _C),
        (121, "C2C link corrected error", _F),
        (123, "SPI PMU RPC write failure", _C),
        (140, "unrecovered ECC error", _C),
        (143, "GPU initialization error", _F),
        (154, "recovery action of the GPU changed", _N),
    )
}

_WORDS = {"ignore": _A, "fatal": _F, "condition": _C}
_EXPECTED = "must be CODE=ignore, CODE=fatal or CODE=condition, CODE a number or 'all'; for example 63=ignore"


@attrs.frozen
class XidPolicy:
    """The table with the admin's changes.

    Attributes:
        changes: What he wants of single XIDs.
        everything: What he wants of all others; None: as in the table.
    """

    changes: Mapping[int, Severity] = attrs.field(factory=dict[int, Severity])
    everything: Severity | None = None

    @classmethod
    def parse(cls, texts: Iterable[str]) -> XidPolicy:
        """Return the policy of texts as ``63=ignore`` and ``all=fatal``.

        Raises:
            kdp.ConfigurationError: One is written otherwise, or an XID is there twice.
        """
        changes: dict[int, Severity] = {}
        everything: Severity | None = None
        for text in texts:
            code, equals, word = (part.strip() for part in text.partition("="))
            if not equals or word not in _WORDS or not (code == "all" or (code.isascii() and code.isdigit())):
                raise kdp.ConfigurationError(f"xids: {text!r} {_EXPECTED}")
            if (everything if code == "all" else changes.get(int(code))) is not None:
                raise kdp.ConfigurationError(f"xids: {code} is there twice; say once what it means")
            if code == "all":
                everything = _WORDS[word]
            else:
                changes[int(code)] = _WORDS[word]
        return cls(changes, everything)

    def of(self, code: int) -> Xid:
        """Return what an error means."""
        known = XIDS.get(code, Xid(code, "unknown error", Severity.FATAL))
        severity = self.changes.get(code, self.everything)
        return known if severity is None else attrs.evolve(known, severity=severity)

    @property
    def is_off(self) -> bool:
        """Whether no error at all matters."""
        return self.everything is Severity.APPLICATION and all(held is _A for held in self.changes.values())
