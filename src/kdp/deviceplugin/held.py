"""`HeldDevices`: which devices of a process containers have under other names, as the rule of both protocols says.

The rule is in `kdp.supervision.holdings`. Here are the devices of all backends of the process, and the allocations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from ..concurrency.threads import offload
from ..model.devices import Health
from ..supervision.backend_validation import class_of
from ..supervision.claimed import claimed_devices
from ..supervision.conditions import HELD, health_of, own_kind
from ..supervision.given import Given
from ..supervision.holdings import Holding, Judgment, Present, id_alone, judge, without_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from ..hardware import Host
    from ..model.devices import Device
    from ..supervision.claimed import ClaimedDevice
    from ..supervision.holdings import Name
    from ..supervision.supervisor import Supervisor
    from .tracking.allocation_record import AllocationRecord
    from .tracking.tracker import Tracker


def is_recorded(device: Device, joined_env: Collection[str]) -> bool:
    """Return whether an Allocate of a device is recorded: it has a thing besides its id."""
    edits = device.edits
    is_named = any(variable in edits.env for variable in joined_env)
    return bool(edits.device_nodes or edits.cdi_devices or device.identity or is_named)


@final
class HeldDevices:
    """Judges the devices of all backends of a process. asyncio only; it does not block.

    Args:
        host: The node's files.
        tracker: Has the allocations.
        supervisors: The backends.
        unrecorded: Returns the names of listed devices that discovery lacks and whose Allocate leaves no record.
        plugins_dir: The directory of all DRA drivers.
        boot_id: The boot of the node; "": unknown.
    """

    def __init__(
        self,
        host: Host,
        tracker: Tracker,
        supervisors: Sequence[Supervisor],
        unrecorded: Callable[[], Iterable[Name]],
        *,
        plugins_dir: Path,
        boot_id: str,
    ) -> None:
        self._look = host.things_of_node
        self._tracker = tracker
        self._supervisors = supervisors
        self._unrecorded = unrecorded
        self._present: tuple[tuple[object, ...], Present] = (), Present()
        self._judgment = Judgment()
        self._beside: Sequence[tuple[str, AllocationRecord]] = ()
        self._claimed: Sequence[ClaimedDevice] = ()
        self._plugins_dir = plugins_dir
        self._mark = -1
        self._boot_id = boot_id

    def judge(self, supervisor: Supervisor, devices: Sequence[Device]) -> dict[str, str]:
        """Judge the newest devices of a backend. Return the reasons of the devices that are withheld, by id."""
        holdings = [
            Holding(
                name=(record.resource, device_id),
                given=given,
                holder=self._tracker.pods_of(record.resource, device_id),
            )
            for record, device_id, given in self._tracker.records.holdings()
        ]
        holdings += self._held_beside()
        holdings += [each.seen_by(self._classes) for each in self._claimed]
        recorded = {each.name for each in holdings}
        holdings += [
            # There is no record, so a pod may hold it until two Lists do not name it.
            Holding(name=name, given=Given(reach=id_alone(name[1])), holder=self._tracker.pods_of(*name))
            for name in self._unrecorded()
            if name not in recorded
        ]
        if not holdings:  # of ten thousand devices none is looked at while pods hold none
            self._judgment = Judgment()
            return {}
        present = self._present_with(supervisor, devices)
        present.look((path for each in holdings for path in each.given.reach if path.startswith("/")), self._look)
        self._judgment = judge(present, holdings, boot_id=self._boot_id)
        held, ids = {each.name for each in holdings}, {device.id for device in devices}
        return {
            name[1]: str(holding)
            for name, holding in self._judgment.withheld.items()
            if name not in held and name[1] in ids
        }

    @property
    def is_outdated(self) -> bool:
        """Whether another process has begun to give devices, or ended, since the last `look`."""
        return self._tracker.records.mark() != self._mark

    async def look(self) -> None:
        """Read the devices that claims have, and that other processes gave, or this plugin under another name.

        Judges all devices again if they are other ones than before.
        """
        records, before = self._tracker.records, self._others
        if self.is_outdated:
            records.adopt()  # a process that came in an update may have been killed
        self._mark = records.mark()
        self._claimed = await offload(lambda: claimed_devices(self._plugins_dir))
        self._beside = await records.beside()
        if self._others != before:
            for supervisor in self._supervisors:
                supervisor.judge_again()

    @property
    def _others(self) -> tuple[set[str], set[str]]:
        return {each.uid for _, each in self._beside}, {each.claim for each in self._claimed}

    @property
    def is_beside_others(self) -> bool:
        """Whether another process, or a driver, has given devices to containers."""
        return bool(self._beside or self._claimed)

    @property
    def _classes(self) -> frozenset[str]:
        return frozenset(class_of(each.backend) for each in self._supervisors)

    def _held_beside(self) -> Iterator[Holding]:
        classes = self._classes
        for label, record in self._beside:
            if record.uid in self._tracker.records.taken_over:
                continue  # since the last look, and it may be released by now
            for device_id, given in record.given.items():
                is_served = record.resource in self._tracker.resources
                if not is_served:
                    given = attrs.evolve(given, reach=without_ids(given.reach))
                name, is_foreign = (record.resource, device_id), not is_served and label not in classes
                yield Holding(name=name, given=given, is_foreign=is_foreign)

    def renamed(self) -> dict[str, Supervisor]:
        """Return resources that have another name now, each with the backend of its devices."""
        found: dict[str, Supervisor] = {}
        for (_, device_id), holding in self._judgment.withheld.items():
            for supervisor in () if holding.name[0] in self._tracker.resources else self._supervisors:
                if any(device.id == device_id for device in supervisor.devices):
                    found[holding.name[0]] = supervisor
        return found

    def given(
        self, supervisor: Supervisor, resource: str, devices: Iterable[Device], named: Collection[str]
    ) -> dict[str, Given]:
        """Return the record of each device that may have another name, or be another thing, later; see `Present.given`.

        Args:
            supervisor: The backend.
            resource: The resource.
            devices: The devices that a container has.
            named: The paths of all nodes that the answer to the kubelet names.
        """
        present = self._present_with(supervisor, supervisor.devices)
        joined_env, shared = supervisor.backend.joined_env, supervisor.shared_nodes
        return {
            device.id: present.given(
                (resource, device.id), device, joined_env, named=named, shared=shared, boot_id=self._boot_id
            )
            for device in devices
            if is_recorded(device, joined_env)
        }

    def obstacle(self, resource: str, device_id: str) -> str | None:
        """Return why no container may get a device that is listed Healthy; `None` if one may."""
        name = resource, device_id
        if (heirs := self._judgment.answering.get(name)) is not None:
            now = " and ".join(f"{heir.id} of {self._resource_of(heir)}" for heir in heirs)
            return f"is {now} now; its pod has ended, so delete this pod, and the next one gets another device"
        holding = self._judgment.withheld.get(name)
        return None if holding is None else str(holding)

    def is_elsewhere(self, record: AllocationRecord) -> bool:
        """Return whether a later pod has hardware of an allocation under another name, and got it before its release.

        That may be if the release has failed. Where devices are scrubbed, no pod gets such a device.
        """
        if record.is_back:
            return False
        records = self._tracker.records
        own = {thing for given in record.given.values() for thing, sharers in given.reach.items() if not sharers}
        return any(
            not (other.is_handed_out or (other.resource, device_id) in record.keys)
            and any(thing in own for thing, sharers in given.reach.items() if not sharers)
            and records.is_later(other, record)  # two that have ended would wait for each other
            for other, device_id, given in records.holdings()
        )

    def successors(self, resource: str, device_id: str) -> tuple[Device, ...]:
        """Return the devices that have the nodes of a vanished device now: a scrub cleans them in its place."""
        return self._judgment.successors.get((resource, device_id), ())

    def answering(self, resource: str) -> dict[str, Health]:
        """Return the health of vanished devices by id, if their hardware answers under another name."""
        found: dict[str, Health] = {}
        for (name, device_id), heirs in self._judgment.answering.items():
            if name == resource:
                found[device_id] = next((h for h in map(self._health, heirs) if not h.is_healthy), Health.healthy())
        return found

    def _health(self, heir: Device) -> Health:
        """Return the health of a device, apart from the condition that it is held."""
        for supervisor in self._supervisors:
            for device in supervisor.discovery.value.devices or ():
                if device.id == heir.id:
                    others = [each for each in device.health.conditions if own_kind(each) is not HELD]
                    return health_of(*others) if others else Health.healthy()
        return heir.health

    def _resource_of(self, device: Device) -> str:
        for supervisor in self._supervisors:
            if any(each.id == device.id for each in supervisor.devices):
                return supervisor.resource_of(device)
        return device.resource or ""

    def _present_with(self, supervisor: Supervisor, devices: Sequence[Device]) -> Present:
        """Return the devices that exist now: these devices of one backend, and the last discoveries of the others."""
        parts = [(each, devices if each is supervisor else each.devices) for each in self._supervisors]
        sources = (*(found for _, found in parts), *(each.node_things for each, _ in parts))
        known, present = self._present
        if len(known) != len(sources) or any(one is not other for one, other in zip(known, sources, strict=True)):
            present = Present()
            for each, found in parts:
                present.add(
                    (device for device in found if device.exists),
                    nodes=each.node_things,
                    resource_of=each.resource_of,
                    joined_env=each.backend.joined_env,
                )
            self._present = sources, present
        return present
