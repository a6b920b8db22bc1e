"""`ServingPlan`: what a process is to serve, and how: checked backends and settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import attrs

from ..errors import ConfigurationError, kind_of
from ..hardware import Host
from ..model.backend import DeviceBackend, tell_mode, watched_files_of
from ..model.health_policy import policy_of
from ..startup import shown
from ..supervision.backend_store import give_store, store_name
from ..supervision.backend_validation import check_attributes, check_signatures
from ..supervision.shared_state import SharedState, states_for
from .mode_lock import key_of
from .own_socket import path_in
from .settings import SETTINGS, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.watched_file import WatchedFile


def check_backends(backends: Sequence[object]) -> tuple[DeviceBackend, ...]:
    """Return the backends if one process can serve them.

    Raises:
        ConfigurationError: There is none, one is no object of a `DeviceBackend`, or two name the same resource.
    """
    if not backends:
        raise ConfigurationError("no backend was given; for example kdp.run(Widgets())")
    checked: list[DeviceBackend] = []
    owners: dict[str, str] = {}
    for backend in backends:
        if isinstance(backend, type):
            name = backend.__name__
            raise ConfigurationError(f"backend {name}: this is the class; give an object of it, {name}()")
        if not isinstance(backend, DeviceBackend):
            raise ConfigurationError(
                f"backend {backend!r}: must be an object of a subclass of kdp.DeviceBackend, this is {kind_of(backend)}"
            )
        owner = type(backend).__name__
        if any(backend is other for other in checked):
            raise ConfigurationError(f"backend {owner}: the same object was given twice")
        check_attributes(backend)
        check_signatures(backend)
        if backend.resource in owners:
            raise ConfigurationError(
                f"resource {backend.resource!r} is named by two backends, {owners[backend.resource]} and {owner}; "
                f"a resource belongs to one backend"
            )
        if backend.resource is not None:
            owners[backend.resource] = owner
        checked.append(backend)
    return tuple(checked)


@final
@attrs.frozen
class ServingPlan:
    """What is to be served, and how.

    Attributes:
        backends: The vendors' objects, checked by `check_backends`.
        settings: The settings, checked by `resolve`.
        host: The node's files that the backends were made with, where kdp made them; None: as the settings say.
        text: The text of the configuration file; None: there is none.
        serves: Whether this process serves the plan; a command that only looks changes no file of the backends.
        states: For each backend what those who served it before have left, such as a hook that still runs.

    Raises:
        ConfigurationError: The settings contradict what a backend says of itself.
    """

    __repr__ = shown

    backends: tuple[DeviceBackend, ...]
    settings: Settings
    host: Host | None = None
    text: str | None = attrs.field(default=None, eq=False, repr=False)
    serves: bool = attrs.field(default=True, kw_only=True)
    states: tuple[SharedState, ...] = attrs.field(
        eq=False, repr=False, default=attrs.Factory(lambda plan: states_for(plan.backends), takes_self=True)
    )

    def __attrs_post_init__(self) -> None:
        for backend in self.backends:
            policy_of(backend, self.settings.health_policy or {})
            tell_mode(backend, is_dra=self.settings.mode != "device-plugin")
            directory, key = self.settings.state_dir, key_of(backend, self.settings.kubelet_root)
            if self.settings.snapshot is not None:  # the values are of this node's devices
                directory = None
            give_store(backend, None if directory is None else directory / store_name(key), writes=self.serves)

    def served(self) -> tuple[DeviceBackend, ...]:
        """Return the backends as they are served: shared, if the settings say so."""
        sharing = self.settings.sharing
        if sharing is None:
            return self.backends
        from ..allocation import share

        return tuple(share(backend, sharing) for backend in self.backends)

    @property
    def watched_files(self) -> tuple[WatchedFile[Any], ...]:
        """The files that the backends watch."""
        return tuple(file for backend in self.backends for file in watched_files_of(backend))

    @property
    def keys(self) -> tuple[str, ...]:
        """What this process's files in the state directory are named by, one for each backend."""
        return tuple(key_of(backend, self.settings.kubelet_root) for backend in self.backends)

    @property
    def driver(self) -> str | None:
        """The DRA driver's name, which its resource gives it if the settings do not; None: nothing names one."""
        from ..dra.names import driver_name  # late: a device plugin is no driver

        named = [backend.resource for backend in self.served() if backend.resource is not None]
        return self.settings.driver_name or (driver_name(named[0]) if named else None)

    @property
    def socket(self) -> Path | None:
        """Where this process answers the commands of its node; None: nowhere."""
        if self.settings.socket is not ...:
            return self.settings.socket
        directory = self.settings.state_dir
        return None if directory is None else path_in(directory, self.settings.mode, self.keys)

    def following(self, old: ServingPlan) -> ServingPlan:
        """Return this plan with the states of those backends that the old one served, too."""
        known = [*zip(old.backends, old.states, strict=True)]
        return attrs.evolve(
            self,
            states=tuple(
                next((state for backend, state in known if backend is served), made)
                for served, made in zip(self.backends, self.states, strict=True)
            ),
        )

    def needs_new_manager(self, old: ServingPlan) -> bool:
        """Return whether going from ``old`` to this takes more than another look at the hardware."""
        of_process = {each.name: getattr(self.settings, each.name) for each in SETTINGS.values() if each.of_process}
        return self.backends != old.backends or self.settings != attrs.evolve(old.settings, **of_process)


def host_of(settings: Settings) -> Host | None:
    """Return the node's files as the settings say; None: they say nothing.

    Raises:
        ConfigurationError: The snapshot cannot be used.
    """
    if settings.snapshot is not None:
        return Host.of_snapshot(settings.snapshot)
    return Host(settings.host_root) if settings.host_root != Path("/") else None
