"""The options without a file: what contradicts what, and the one resource that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

import kdp

from .config import (
    MAX_CONTAINERS,
    POOL_PREFIX,
    Config,
    Functions,
    Mode,
    PoolConfig,
    Selectors,
    VfConfig,
    VfSelector,
    functions_of,
    hexadecimal,
    resource_name,
)

if TYPE_CHECKING:
    from pathlib import Path

DEFAULTS = {"pool": f"{POOL_PREFIX}/hca_shared_devices", "hca": f"{POOL_PREFIX}/hca", "vf": f"{POOL_PREFIX}/vf"}
"""The resource's name, by mode."""

_NAMES = {"devices": "device_ids", "is_rdma": "is_rdma=true"}
"""What fields of `VfSelector` are called here, if not as there."""

_BELONGS_TO = {"rdma_hca_max": ("pool",), "if_names": ("pool", "hca"), "pf_names": ("vf",), "is_rdma": ("vf",)}


@attrs.frozen(kw_only=True)
class Options:
    """Options that describe a resource; None: not given. Their meaning is told in `Rdma`."""

    resource: str | None = None
    rdma_hca_max: int | None = None
    vendors: Sequence[str] | None = None
    device_ids: Sequence[str] | None = None
    drivers: Sequence[str] | None = None
    link_types: Sequence[str] | None = None
    if_names: Sequence[str] | None = None
    pf_names: Sequence[str] | None = None
    is_rdma: bool | None = None

    def check(
        self, mode: Mode, config: Path | None, prefix: str | None, slots: int | None, *, shared: bool = False
    ) -> None:
        """Refuse what contradicts the mode or the file.

        Raises:
            kdp.ConfigurationError: One sentence that names both.
        """
        given = {name: value for name, value in attrs.asdict(self, recurse=False).items() if value is not None}
        for name, modes in {**_BELONGS_TO, "slots": ("hca",)}.items():
            value = slots if name == "slots" else given.get(name)
            if value is not None and mode not in modes:
                raise kdp.ConfigurationError(
                    f"{name}={value}: belongs to the mode {' or '.join(modes)}, and mode is {mode}; remove one of the "
                    "two"
                )
        if shared and (mode != "hca" or slots not in (None, 1)):
            raise kdp.ConfigurationError(
                f"shared: is for mode=hca without slots, and here are mode={mode}, slots={slots or 1}; remove one of "
                "them"
            )
        if slots is not None:
            _within(slots, "slots")
        if config is not None and given:
            name, value = next(iter(given.items()))
            raise kdp.ConfigurationError(
                f"{name}={value}: the file {config} says what the resources are; remove one of the two"
            )
        if config is None and prefix is not None:
            raise kdp.ConfigurationError(
                f"resource_prefix={prefix}: is for the names in a file, and there is no config; give "
                f"resource={prefix}/NAME"
            )

    def config(self, mode: Mode) -> Config:
        """Return the one resource.

        Raises:
            kdp.ConfigurationError: One of the options is not valid.
        """
        try:
            resource = resource_name(self.resource or DEFAULTS[mode])
        except kdp.InvalidValueError as error:
            raise kdp.ConfigurationError(f"resource: {error}") from error
        vendors, devices = _ids("vendors", self.vendors), _ids("device_ids", self.device_ids)
        drivers, link_types = tuple(self.drivers or ()), tuple(self.link_types or ())
        if mode == "vf":
            selector = VfSelector(
                vendors=vendors,
                devices=devices,
                drivers=drivers,
                link_types=link_types,
                pf_names=_parents(self.pf_names or ()),
                is_rdma=True if self.is_rdma is None else self.is_rdma,
            )
            return Config(vfs=(VfConfig(resource=resource, selectors=(selector,), names=_NAMES),))
        selectors = Selectors(
            vendors=vendors,
            device_ids=devices,
            drivers=drivers,
            if_names=tuple(self.if_names or ()),
            link_types=link_types,
        )
        containers = 100 if self.rdma_hca_max is None else _within(self.rdma_hca_max, "rdma_hca_max")
        return Config(pools=(PoolConfig(resource=resource, containers=containers, selectors=selectors),))


def _within(value: int, name: str) -> int:
    if not 1 <= value <= MAX_CONTAINERS:
        raise kdp.ConfigurationError(
            f"{name}={value}: must be a number from 1 to {MAX_CONTAINERS}; for example {name}=4"
        )
    return value


def _ids(name: str, texts: Sequence[str] | None) -> tuple[str, ...]:
    found: list[str] = []
    for text in texts or ():
        number = hexadecimal(text)
        if number is None:
            raise kdp.ConfigurationError(f"{name}={text}: must be a hexadecimal PCI id; for example 15b3")
        found.append(number)
    return tuple(found)


def _parents(texts: Sequence[str]) -> tuple[Functions, ...]:
    found: list[Functions] = []
    for text in texts:
        parsed = functions_of(text)
        if parsed is None:
            raise kdp.ConfigurationError(
                f"pf_names={text}: must be a name, optionally followed by # and a number or a range; "
                "for example eth0#0-3"
            )
        found.append(parsed)
    return tuple(found)
