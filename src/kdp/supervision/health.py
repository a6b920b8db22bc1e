"""Which devices are healthy, since when, and why not: a state machine for each device over named conditions. Sans-IO.

Discovery sets one condition, kdp's own checks set others (`kdp.supervision.conditions`), and `Reporter.fault` sets
those of the backend, by kind. Events go in with their times, `HealthChange` and the listed devices come out;
`HealthMonitor.deadline` and `HealthMonitor.wants_probe` say when it wants to be called again. Thresholds are in
`HealthPolicy`.

::

                    bad probe                                           listed
    HEALTHY ────────────────────► SUSPECT    too few bad ones yet       Healthy
       ▲ ▲                           │
       │ └────── a good probe ───────┤
       │                             │ enough bad ones, or any pushed fault: a flap
       │                             ▼
    RECOVERING ◄─ good probe ─ UNHEALTHY                                Unhealthy
       │  bad one, pushed fault ─────▲
       │                             │ (or back to HEALTHY at once, where only pushed faults were cleared)
       └── few good ones left ◄─ QUARANTINED   a flap too many          Unhealthy
                                     until it had no fault for the hold-down

Invariants, each with a mutant in the tests that breaks it:

1. A device is listed Healthy only while no condition is faulty: no kind that was pushed for it or its unit, none that
   kdp's own checks have found, and discovery's own condition is not in force.
2. Discovery's condition is in force from ``failures`` bad probes in a row (from the first, where the device is new) to
   ``successes`` good ones in a row. No probe clears a fault that was pushed, and no `clear` discovery's condition.
3. A device without a faulty condition is listed Healthy, unless it is in quarantine and its last fault ended less than
   its hold-down ago, which has a bound. What is due is not due again.
4. Quarantine begins at the flap that is one too many, and at each flap within ``flap_window`` after a quarantine; the
   hold-down doubles with each of these and is forgotten after a quiet ``flap_window``. To be withheld is no flap, and
   the words of a reason decide nothing.
5. While the probe itself is silent every device is Unhealthy; that leaves no trace: neither flap nor good probe.
6. Each change of state is told once. Reason and since are kept while it lasts; what has not changed is the same object.
7. A further probe is wanted exactly while a row of probes of a listed device is unfinished.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, final

import attrs

from ..model.conditions import Condition
from ..model.devices import Device, Health
from ..model.health_policy import HealthPolicy
from ..startup import shown
from .conditions import DISCOVER, QUARANTINE, SILENCE, Conditions, is_withheld, labels_of, lasting
from .fault_limits import forget_unknown, keep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Condition", "DeviceHealth", "HealthChange", "HealthMonitor", "HealthState"]

_MOST_REASONS = 5
"""So many faults are named of a device in quarantine: what goes on flapping must not be news for ever."""

_MOST_DOUBLINGS = 64

UNSPECIFIED = "unspecified"
"""The kind of a fault of which nothing more is known."""


@final
class HealthState(enum.Enum):
    """How a device is. The first two are listed Healthy."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    UNHEALTHY = "unhealthy"
    RECOVERING = "recovering"
    QUARANTINED = "quarantined"

    @property
    def is_listed_healthy(self) -> bool:
        """Whether new containers may get the device."""
        return self in _UP


_UP = (HealthState.HEALTHY, HealthState.SUSPECT)


@final
@attrs.frozen(kw_only=True)
class DeviceHealth:
    """How one device is, and since when.

    Attributes:
        state: The state.
        reason: Why; None: it is healthy.
        since: When the state began, in seconds on the caller's clock.
        conditions: The conditions that are against it: the backend's faults, and kdp's own. Two values that differ
            only in them are equal.
    """

    __repr__ = shown

    state: HealthState
    reason: str | None
    since: float
    conditions: tuple[Condition, ...] = attrs.field(default=(), eq=False)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its conditions, as metrics and the status document show them."""
        return labels_of(self.conditions)

    @property
    def kind(self) -> str:
        """What kind of fault it is, in a word: that of `kdp.Reporter.fault`, else one of kdp's own."""
        reported = labels_of(each for each in self.conditions if each.whose == "backend")
        first = next(iter((*reported, *self.kinds)), None)
        return first or (UNSPECIFIED if self.state is HealthState.UNHEALTHY else self.state.value)


@final
@attrs.frozen(kw_only=True)
class HealthChange:
    """A device's state has changed.

    Attributes:
        device: The device as it is listed now.
        before: The state before; None: the device is new (then this one is not healthy).
        health: How it is now.
        resource: The resource that the device is of; None: the monitor does not know it, and its caller adds it.
    """

    __repr__ = shown

    device: Device
    before: HealthState | None
    health: DeviceHealth
    resource: str | None = None


@attrs.define
class _Record:
    """What must be remembered of one device; those that never had a fault have none.

    Attributes:
        state: None: it was never listed before.
        reason: Why it is in that state.
        bad: Bad probes in a row.
        good: Good probes in a row.
        in_force: Whether discovery's condition is.
        said: Discovery's last bad word on it.
        causes: The faults of the last time that it had any.
        clean_since: When its last fault ended; None: it has one.
        up_since: When it was last listed Healthy again; None: it always was, or it is not.
        flaps: When it flapped last, within the window.
        quarantines: How many in a row.
        hold: The current hold-down.
        gone_since: When it vanished from discovery; None: it is there.
    """

    __repr__ = shown

    state: HealthState | None
    reason: str | None = None
    bad: int = 0
    good: int = 0
    in_force: bool = False
    said: str = ""
    causes: tuple[str, ...] = ()
    clean_since: float | None = None
    up_since: float | None = None
    flaps: list[float] = attrs.field(factory=list[float])
    quarantines: int = 0
    hold: float = 0.0
    gone_since: float | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether a row of probes has begun that decides something."""
        return self.in_force != (self.bad > 0)

    @property
    def release_at(self) -> float | None:
        if self.state is not HealthState.QUARANTINED or self.clean_since is None:
            return None
        return self.clean_since + self.hold

    def probe(self, is_good: bool, is_new: bool, policy: HealthPolicy) -> None:
        self.gone_since = None
        if is_good:
            self.bad, self.good = 0, self.good + 1
            if self.good >= policy.successes:
                self.in_force = False
        else:
            self.bad, self.good = self.bad + 1, 0
            if is_new or self.bad >= policy.failures:
                self.in_force = True

    def vanish(self, now: float) -> None:
        """Note that discovery no longer names it: no row goes on, and no hold-down runs."""
        if self.gone_since is None:
            self.bad = self.good = 0
            self.clean_since = None
            self.gone_since = now

    def settle(
        self, probed: str | None, pushed: Sequence[Condition], is_new: bool, now: float, policy: HealthPolicy
    ) -> None:
        """Find the state that follows from what discovery says is wrong (``probed``), and what else is (``pushed``)."""
        self.said = probed or self.said
        reasons = [each.reason for each in pushed]
        causes = tuple(dict.fromkeys(reasons if probed is None else (probed, *reasons)))
        is_sick = self.in_force and self.bad > 0
        is_faulty = bool(pushed) or is_sick
        before, was_up = self.state, self.state in _UP
        if is_faulty:
            self.clean_since = None
        elif self.clean_since is None:
            self.clean_since = now
        if before is HealthState.QUARANTINED:
            if is_faulty:
                self.causes = tuple(dict.fromkeys((*self.causes, *causes)))[:_MOST_REASONS]
            release_at = self.release_at
            if release_at is None or now < release_at:
                self._be(HealthState.QUARANTINED, self.quarantine())
                return
        elif is_faulty:
            self.causes = causes
            works = not is_sick and is_withheld(pushed)
            if was_up and not is_new and not works and self._flap(now, policy):
                self._be(HealthState.QUARANTINED, self.quarantine())
                return
        if is_faulty:
            self._be(HealthState.UNHEALTHY, "; ".join(causes))
        elif self.in_force:
            text = f"recovering, it needs {policy.successes} good probes in a row; it was: {'; '.join(self.causes)}"
            self._be(HealthState.RECOVERING, text)
        else:
            if not was_up and before is not None:
                self.up_since = now
            self._be(HealthState.SUSPECT if self.bad else HealthState.HEALTHY, probed)

    def _be(self, state: HealthState, reason: str | None) -> None:
        self.state, self.reason = state, reason

    def _flap(self, now: float, policy: HealthPolicy) -> bool:
        """Count a flap and return whether it is one too many."""
        if self.is_calm(now, policy):
            self.quarantines = 0
            self.flaps.clear()
        self.up_since = None
        recent = [*(when for when in self.flaps if when > now - policy.flap_window), now]
        self.flaps = recent[-(policy.flaps or 1) :]  # no more than are counted, however fast it flaps
        if policy.flaps is None or (len(self.flaps) < policy.flaps and not self.quarantines):
            return False
        self.hold = min(policy.hold_down * 2.0 ** min(self.quarantines, _MOST_DOUBLINGS), policy.hold_down_max)
        self.quarantines += 1
        return True

    def is_calm(self, now: float, policy: HealthPolicy) -> bool:
        """Return whether nothing that happened before counts any more."""
        return self.up_since is not None and now - self.up_since >= policy.flap_window

    def is_forgotten(self, now: float, policy: HealthPolicy) -> bool:
        if self.gone_since is not None:
            return now - self.gone_since >= max(policy.flap_window, self.hold)
        has_past = bool(self.flaps or self.quarantines) and not self.is_calm(now, policy)
        return self.state is HealthState.HEALTHY and not self.is_unfinished and not has_past

    def quarantine(self) -> str:
        """Return why it is in quarantine."""
        return (
            f"quarantined, it flapped {len(self.flaps)} times lately and needs {self.hold:g} s without a fault; "
            f"last: {'; '.join(self.causes)}"
        )


class HealthMonitor:
    """The health of all devices of one backend.

    Every event takes the time ``now``, in seconds on any clock that only grows, and returns what changed.

    Args:
        policy: The thresholds.

    Attributes:
        forgotten: Of how many ids that no device has faults were forgotten, because there were too many.
    """

    def __init__(self, policy: HealthPolicy | None = None) -> None:
        self._policy = policy or HealthPolicy()
        self.forgotten = 0
        self._faults: dict[str, dict[str, Condition]] = {}
        self._own: Conditions = {}
        self._silence: str | None = None
        self._found: dict[str, Device] = {}
        self._units: dict[str, list[str]] | None = None
        self._records: dict[str, _Record] = {}
        self._listed: dict[str, Device] = {}
        self._sources: dict[str, Device] = {}
        self._health: dict[str, DeviceHealth] = {}

    # -- what follows from the events ----------------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices as they are to be listed, in discovery's order."""
        return tuple(self._listed.values())

    @property
    def health(self) -> Mapping[str, DeviceHealth]:
        """How those devices are that are not simply healthy, by id. A copy."""
        return dict(self._health)

    @property
    def deadline(self) -> float | None:
        """When `tick` is to be called, because a hold-down ends then; None: never."""
        times = (record.release_at for record in self._records.values() if record.gone_since is None)
        return min((when for when in times if when is not None), default=None)

    @property
    def wants_probe(self) -> bool:
        """Whether a row of probes is unfinished, so that the next one should come soon (``HealthPolicy.recheck``)."""
        return any(record.is_unfinished and record.gone_since is None for record in self._records.values())

    # -- events --------------------------------------------------------------------------------------------------------

    def fault(self, ids: Iterable[str], reason: str, *, kind: str, now: float) -> tuple[HealthChange, ...]:
        """Set a condition on units or device ids; known or not, it shows once such a device is there."""
        names = tuple(ids)
        fault = Condition(kind=kind, reason=reason, since=now, whose="backend")
        for name in names:
            keep(self._faults, name, fault)
        concerned = self._concerned(names)
        self.forgotten += forget_unknown(self._faults, len(self._found), self._is_known)
        return self._settle(concerned, now)

    def strangers(self) -> list[str]:
        """Return the names with faults that no device has, and had not lately, as id or unit: slips of the pen."""
        return [name for name in self._faults if name not in self._records and not self._is_known(name)]

    def clear(self, ids: Iterable[str], *, kind: str, now: float) -> tuple[HealthChange, ...]:
        """Take a condition back; one that was never set does no harm."""
        names = tuple(ids)
        for name in names:
            kinds = self._faults.get(name, {})
            kinds.pop(kind, None)
            if not kinds:
                self._faults.pop(name, None)
        return self._settle(self._concerned(names), now)

    def probed(self, devices: Iterable[Device], own: Conditions, now: float) -> tuple[HealthChange, ...]:
        """Take what a discovery found: one probe of each device, and the end of any silence.

        Args:
            devices: As discovered; each id once.
            own: The conditions that kdp itself has found, by device id.
            now: The time.
        """
        before, policy = self._found, self._policy
        self._found = {device.id: device for device in devices}
        self._own, self._silence, self._units = own, None, None
        for device_id in [i for i, record in self._records.items() if record.is_forgotten(now, policy)]:
            del self._records[device_id]
        for device_id in self._records.keys() - self._found.keys():
            self._records[device_id].vanish(now)
        for device_id, device in self._found.items():
            is_good = device.health.is_healthy
            record = self._records.get(device_id)
            if record is None and not is_good:
                record = self._record(device_id, device_id not in before)
            if record is not None:
                record.probe(is_good, device_id not in before, policy)
        listed, self._listed = self._listed, self._found.copy()
        self._health = {i: health for i, health in self._health.items() if i in self._found}
        self._sources = {i: source for i, source in self._sources.items() if i in self._found}
        special = self._records.keys() | self._faults.keys() | own.keys() | self._health.keys()
        return self._settle([i for i, d in self._found.items() if i in special or d.unit in special], now, listed)

    def looked(self, own: Conditions, now: float) -> tuple[HealthChange, ...]:
        """Take the conditions that kdp itself has found since the last discovery, by device id."""
        changed = self._own.items() ^ own.items()
        self._own = own
        return self._settle(dict.fromkeys(i for i, _ in changed if i in self._found), now)

    def silence(self, reason: str, now: float) -> tuple[HealthChange, ...]:
        """Mark every device Unhealthy, because nobody knows how it is; until the next `probed`."""
        if self._silence == reason:
            return ()
        self._silence = reason
        return self._settle(self._found, now)

    def tick(self, now: float) -> tuple[HealthChange, ...]:
        """Do what is due; see `deadline`."""
        due = (i for i, record in self._records.items() if record.gone_since is None and record.release_at is not None)
        return self._settle(tuple(due), now)

    # -- the machine ---------------------------------------------------------------------------------------------------

    def _concerned(self, names: Iterable[str]) -> dict[str, None]:
        concerned: dict[str, None] = {}
        for name in names:
            concerned.update(dict.fromkeys(self._by_unit().get(name, ())))
            if name in self._found:
                concerned[name] = None
        return concerned

    def _by_unit(self) -> dict[str, list[str]]:
        """Return the ids of the devices by unit; made at the first fault after a discovery."""
        if self._units is None:
            self._units = {}
            for device in self._found.values():
                self._units.setdefault(device.unit, []).append(device.id)
        return self._units

    def _is_known(self, name: str) -> bool:
        return name in self._found or name in self._by_unit()

    def _record(self, device_id: str, is_new: bool) -> _Record:
        record = self._records[device_id] = _Record(None if is_new else HealthState.HEALTHY)
        return record

    def _pushed(self, device: Device) -> list[Condition]:
        found = [*self._own.get(device.id, ())]
        for name in dict.fromkeys((device.unit, device.id)):
            if name in self._faults:
                found.extend(self._faults[name].values())
        return found

    def _conditions(
        self, pushed: Iterable[Condition], record: _Record | None, known: DeviceHealth | None, now: float
    ) -> tuple[Condition, ...]:
        """Return the conditions against a device, discovery's own first."""
        found: list[Condition] = []
        if record is not None and (record.in_force or record.bad):
            found.append(DISCOVER.because(record.said, now))
        found += pushed
        if self._silence is not None:
            found.append(SILENCE.because(self._silence, now))
        if record is not None and record.state is HealthState.QUARANTINED:
            found.append(QUARANTINE.because(record.quarantine(), now))
        return lasting(dict.fromkeys(found), () if known is None else known.conditions)

    def _settle(
        self, ids: Iterable[str], now: float, listed_before: Mapping[str, Device] | None = None
    ) -> tuple[HealthChange, ...]:
        before = self._listed if listed_before is None else listed_before
        transitions: list[HealthChange] = []
        for device_id in ids:
            device, pushed = self._found[device_id], self._pushed(self._found[device_id])
            record, is_new = self._records.get(device_id), device_id not in before
            if record is None and pushed:
                record = self._record(device_id, is_new)
            if record is not None:
                record.settle(device.health.reason, pushed, is_new, now, self._policy)
            known = self._health.get(device_id)
            health = self._health_of(pushed, record, known, now)
            self._listed[device_id] = listed = self._as_listed(device, health, before.get(device_id))
            if known is not None and health == known and health.conditions == known.conditions:
                continue
            if health.state is HealthState.HEALTHY:
                self._health.pop(device_id, None)
            else:
                self._health[device_id] = health
            state = None if is_new else known.state if known is not None else HealthState.HEALTHY
            if state is not health.state and not (is_new and health.state is HealthState.HEALTHY):
                transitions.append(HealthChange(device=listed, before=state, health=health))
        return tuple(transitions)

    def _health_of(
        self, pushed: Iterable[Condition], record: _Record | None, known: DeviceHealth | None, now: float
    ) -> DeviceHealth:
        state = (record.state if record else None) or HealthState.HEALTHY
        reason = record.reason if record else None
        if self._silence is not None:
            reason = self._silence if state in _UP else f"{reason}; {self._silence}"
            state = HealthState.UNHEALTHY if state in _UP else state
        return DeviceHealth(
            state=state,
            reason=reason,
            since=known.since if known and known.state is state else now,
            conditions=self._conditions(pushed, record, known, now),
        )

    def _as_listed(self, device: Device, health: DeviceHealth, before: Device | None) -> Device:
        """Return the device with this health; the same object as before if that says so of the same device."""
        is_up = health.state in _UP
        if is_up and device.health.is_healthy:
            self._sources.pop(device.id, None)
            return device
        listed = Health.healthy() if is_up else Health(health.reason, health.conditions)
        if before is not None and _is_same(before.health, listed) and self._sources.get(device.id) is device:
            return before
        self._sources[device.id] = device
        return attrs.evolve(device, health=listed)


def _is_same(one: Health, other: Health) -> bool:
    return one == other and one.conditions == other.conditions
