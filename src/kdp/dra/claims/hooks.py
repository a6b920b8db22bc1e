"""`ClaimHooks`: the backend's devices, and its hooks that take part in a claim's life. asyncio only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs

from ...concurrency.threads import offload
from ...errors import (
    AllocationError,
    ClaimError,
    EditConflictError,
    HookTimeoutError,
    InvalidValueError,
    NotReady,
    sentence,
)
from ...model.backend import Allocation
from ...model.devices import Device, Health
from ...model.edits import ContainerEdits
from ...supervision.backend_validation import class_of, resource_of
from ...supervision.claimed import claimed_devices
from ...supervision.holdings import Holding, Present, judge
from ...supervision.hooks import check_state
from .cdi_specs import render_part
from .parameters import Parameters, read_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from ...cdi import CdiDevice
    from ...hardware import Host
    from ...model.claims import Claim
    from ...model.edits import Mount
    from ...supervision.claimed import ClaimedDevice
    from ...supervision.given import Given
    from ...supervision.supervisor import Supervisor
    from ..plugin_holders import PluginHolders
    from .checkpoint import ClaimPart, Record, Use

logger = logging.getLogger(__name__)

_OF_PREPARE: Final = ("allocate", "prepare_container")

DISCOVERY_SECONDS = 5.0
"""How long a Prepare waits for the first discovery."""


class RefusedError(AllocationError):
    """A hook has refused a claim.

    Args:
        hook: The hook.
        text: Its sentence.
    """

    def __init__(self, hook: str, text: str) -> None:
        super().__init__(text)
        self.hook = hook


class ClaimHooks:
    """Calls a backend's hooks for parts of claims.

    Args:
        driver: The driver's name.
        supervisor: The backend.
        host: The node's files.
        records: Returns the records of all claims; may block for the disk.
        boot_id: The boot of the node; "": unknown.
        holders: Knows the pods that hold devices of a device plugin; `None`: there can be none.
        plugins_dir: The directory of all drivers; `None` if no other driver can have the devices.

    Attributes:
        backend: The backend.
    """

    def __init__(
        self,
        driver: str,
        supervisor: Supervisor,
        host: Host,
        *,
        records: Callable[[], Iterable[Record]],
        boot_id: str = "",
        holders: PluginHolders | None = None,
        plugins_dir: Path | None = None,
    ) -> None:
        self._driver = driver
        self._records = records
        self._supervisor = supervisor
        self.backend = supervisor.backend
        self._render = partial(render_part, driver=driver, host=host, joined_env=supervisor.backend.joined_env)
        self._by_id: tuple[tuple[Device, ...], Mapping[str, Device]] = ((), {})
        self._look = host.things_of_node
        self._boot_id = boot_id
        self._holders = holders
        self._plugins_dir = plugins_dir
        self._elsewhere: Sequence[ClaimedDevice] = ()
        self._late: dict[str, dict[object, dict[str, Any]]] = {}
        self._present: tuple[tuple[object, ...], Present] = (), Present()

    @property
    def latest(self) -> Mapping[str, Device] | None:
        """The devices of the last discovery, by id; None: there was none."""
        found = self._supervisor.discovery.value.devices
        if found is None:
            return None
        if found is not self._by_id[0]:  # a Prepare asks for them several times, and there may be thousands
            self._by_id = found, {device.id: device for device in found}
        return self._by_id[1]

    def judge_again(self) -> None:
        """Have the devices judged anew: a claim has given some back."""
        self._supervisor.judge_again()

    def forget(self, claim: Claim) -> None:
        """A claim is over, and has given its devices back."""
        self._late.pop(claim.uid, None)
        self.judge_again()

    def overridden(self, hook: str) -> bool:
        """Return whether the backend has a hook of its own."""
        return self._supervisor.hooks.overridden(hook)

    async def devices(self) -> Mapping[str, Device]:
        """Return the devices that there are now, by id.

        Raises:
            NotReady: The backend has not said, or is closed.
        """
        latest = self._supervisor.discovery
        with anyio.move_on_after(DISCOVERY_SECONDS):
            while latest.value.devices is None:
                await latest.after(latest.version)
        known = self.latest
        if known is None or latest.value.problem is not None:
            raise NotReady(f"{self._supervisor.label} is not ready: {latest.value.problem}")
        return known

    async def allocate(
        self, claim: Claim, part: ClaimPart, config: object | None, metadata: Mount | None
    ) -> tuple[ClaimPart, list[CdiDevice]]:
        """Call ``allocate`` for a part; return the part with its answer and its state, and its devices in CDI.

        Args:
            claim: The claim.
            part: The part.
            config: Its parameters.
            metadata: What mounts the request's metadata file; None: nothing does.

        Raises:
            AllocationError: The devices contradict one another, or the hook said no.
            ClaimError: A device has just gone.
            HookTimeoutError: The hook has not answered; its thread may still be at it.
        """
        known = await self.devices()
        self._supervisor.hooks.forget("released", _work(claim, part))
        if not self.overridden("allocate"):
            return await offload(lambda: self.rendered(claim, part, known, metadata))
        seconds = self._supervisor.deadlines.allocate
        devices = _devices_of(part, known)
        allocation = await self._allocation(claim, part, devices, config, seconds, check_state(dict(part.state)))

        def finish(edits: Any) -> tuple[ClaimPart, list[CdiDevice]]:
            if not isinstance(edits, ContainerEdits):
                raise InvalidValueError(f"it returned {edits!r}: must be kdp.ContainerEdits")
            answered, found = self._render(
                claim,
                part,
                devices,
                edits,
                metadata=metadata,
                network=allocation.network,
                keeps_nodes=True,
                given_of=self._given,
            )
            return attrs.evolve(answered, state=check_state(allocation.state)), found

        result: tuple[ClaimPart, list[CdiDevice]] = await self._called("allocate", part, allocation, finish, seconds)
        return result

    async def _called(
        self, hook: str, part: ClaimPart, allocation: Allocation, then: Callable[[Any], Any], seconds: float
    ) -> Any:
        """Call a hook of a claim's Prepare.

        Raises:
            RefusedError: The hook said no.
            KdpError: It failed otherwise.
        """
        assert allocation.claim is not None
        owner = allocation.claim.uid
        try:
            return await self._supervisor.call(hook, allocation, deadline=seconds, then=then, owner=owner)
        except EditConflictError:  # kdp refuses the contradiction of two devices
            raise
        except AllocationError as error:
            raise RefusedError(hook, sentence(error)) from error
        except (HookTimeoutError, asyncio.CancelledError):  # the hook's thread may still write to the state
            self.note_state(allocation.claim, part, allocation.state)
            raise

    def note_state(self, claim: Claim, part: ClaimPart, state: dict[str, Any]) -> None:
        """Keep the state that a hook has left or is still writing to, until `settled` is called."""
        self._late.setdefault(claim.uid, {})[part.key] = state

    async def prepare_container(
        self, claim: Claim, part: ClaimPart, config: object | None, state: dict[str, Any]
    ) -> None:
        """Call ``prepare_container`` for a part, unless it is admin access: a pod may be using its devices.

        Args:
            claim: The claim.
            part: The part.
            config: Its parameters.
            state: What ``allocate`` has left; the hook may change it, also if this raises.

        Raises:
            ClaimError: A device has just gone.
            HookTimeoutError: The hook has not answered; its thread may still be at it, and change ``state``.
            KdpError: The backend is not ready, or the hook has failed or said no.
        """
        if part.is_admin:
            return
        seconds = self._supervisor.deadlines.prepare_container
        devices = _devices_of(part, await self.devices())
        allocation = await self._allocation(claim, part, devices, config, seconds, state)
        await self._called("prepare_container", part, allocation, lambda _: check_state(state), seconds)

    def running(self, claim: Claim) -> str | None:
        """Return the hook of a claim's Prepare that has a thread now; `None` if none has."""
        hooks = self._supervisor.hooks
        return next((each for each in _OF_PREPARE if hooks.is_running(each, claim.uid)), None)

    async def settled(self, record: Record, *, deadline: float | None = None) -> Record:
        """Wait until no hook of a claim's Prepare has a thread; return the record with the states that were noted.

        Args:
            record: The claim's record.
            deadline: In seconds; `None`: however long it takes.

        Raises:
            HookTimeoutError: A hook still runs.
        """
        while (hook := self.running(record.claim)) is not None:
            await self._supervisor.hooks.idle(hook, deadline=deadline)
        late = self._late.pop(record.claim.uid, {})
        for position, part in enumerate(record.parts):
            if part.key in late and not part.is_released:
                with contextlib.suppress(InvalidValueError):  # the vendor's mistake: the state of before stays
                    record = record.with_part(position, attrs.evolve(part, state=check_state(late[part.key])))
        return record

    async def release(self, record: Record, part: ClaimPart, state: dict[str, Any]) -> None:
        """Call ``released`` for a part with this state, unless an earlier call for the part has ended well.

        A device that is gone is given as one that is unhealthy. When this returns or raises, no thread of the hook has
        the state any more.

        Raises:
            KdpError: The backend is not ready, or the hook has failed, or did not return before its deadline.
        """
        hooks, work = self._supervisor.hooks, _work(record.claim, part)
        if hooks.is_done("released", work):
            return
        seconds = self._supervisor.deadlines.released
        known = await self.devices()
        gone = Health.unhealthy("the device is gone")
        devices = (known.get(use.device_id) or Device(id=use.device_id, health=gone) for use in part.uses)
        config = self._parameters(record).of_request(part.request)
        allocation = await self._allocation(record.claim, part, devices, config, seconds, state)
        try:
            await self._supervisor.call("released", allocation, deadline=seconds, work=work)
        except HookTimeoutError:
            await hooks.idle("released", deadline=None)
            if not hooks.is_done("released", work):
                raise

    def note_released(self, claim: Claim, part: ClaimPart, *, is_saved: bool) -> None:
        """Note that ``released`` has returned for a part: it is not called again, also if the disk did not take that.

        Args:
            claim: The claim.
            part: The part.
            is_saved: Whether the claim's record says so.
        """
        note = self._supervisor.hooks.forget if is_saved else self._supervisor.hooks.note_done
        note("released", _work(claim, part))

    def rendered(
        self, claim: Claim, part: ClaimPart, known: Mapping[str, Device], metadata: Mount | None
    ) -> tuple[ClaimPart, list[CdiDevice]]:
        """Return what `allocate` does, for a part whose devices say it all themselves. Blocks for stat(2) calls.

        Raises:
            AllocationError: The devices contradict one another.
            ClaimError: A device has just gone.
        """
        devices = _devices_of(part, known)
        try:
            edits = ContainerEdits.merge(
                ((device.id, device.edits) for device in devices), joined_env=self.backend.joined_env
            )
            return self._render(
                claim,
                part,
                devices,
                edits,
                metadata=metadata,
                given_of=self._given,
            )
        except (EditConflictError, InvalidValueError) as error:
            raise AllocationError(f"request {part.request}: {error}") from error

    # -- what claims hold under other names ----------------------------------------------------------------------------

    def look_elsewhere(self) -> bool:
        """Read the claims of other drivers; return whether they are other ones than before. Blocks for the disk."""
        if self._plugins_dir is None:
            return False
        before, self._elsewhere = self._elsewhere, claimed_devices(self._plugins_dir, without=self._driver)
        return {each.claim for each in before} != {each.claim for each in self._elsewhere}

    def withheld(
        self, records: Iterable[Record], devices: Sequence[Device] | None = None, *, of: Claim | None = None
    ) -> dict[str, Holding]:
        """Return the devices that claims hold under other names, by id: no other claim may get them.

        Blocks for a stat(2) of each node that a claim has and no device has now.

        Args:
            records: The claims.
            devices: The devices; `None`: those of the last discovery.
            of: The claim that asks; its own devices are free for it.
        """
        holdings = [
            Holding(
                name=(self._driver, use.device_id),
                given=use.given,
                holder=f"claim {record.held.name}",
            )
            for record in records
            if of is None or record.claim.uid != of.uid
            for use in record.owed
            if use.given.reach and not use.is_admin
        ]
        holdings += [each.seen_by({class_of(self.backend)}) for each in self._elsewhere]
        found = self._supervisor.devices if devices is None else devices
        if self._holders is not None:
            holdings += self._holders.holdings(found, partial(resource_of, backend=self.backend))
        if not holdings:
            return {}
        present = self._present_with(found)
        present.look((path for each in holdings for path in each.given.reach if path.startswith("/")), self._look)
        verdict = judge(present, holdings, boot_id=self._boot_id)
        held = frozenset[tuple[str, str]]() if of is not None else {each.name for each in holdings}
        return {name[1]: holding for name, holding in verdict.withheld.items() if name not in held}

    def reaching(self, use: Use) -> Use:
        """Return a use with the things that its container will be able to touch, as they must be saved first."""
        device = (self.latest or {}).get(use.device_id)
        if device is None or use.is_admin:
            return use
        return attrs.evolve(use, given=self._given(device, ()))

    def _given(self, device: Device, named: Collection[str]) -> Given:
        """Return the record of a device that a container gets now; see `Present.given`."""
        present = self._present_with(self._supervisor.devices)
        return present.given(
            (self._driver, device.id),
            device,
            self.backend.joined_env,
            named=named,
            shared=self._supervisor.shared_nodes,
            boot_id=self._boot_id,
        )

    def _present_with(self, devices: Sequence[Device]) -> Present:
        nodes = self._supervisor.node_things
        known, present = self._present
        if not known or known[0] is not devices or known[1] is not nodes:
            present = Present()
            driver, joined = self._driver, self.backend.joined_env
            present.add(devices, nodes=nodes, resource_of=lambda _: driver, joined_env=joined)
            self._present = (devices, nodes), present
        return present

    async def _allocation(
        self,
        claim: Claim,
        part: ClaimPart,
        devices: Iterable[Device],
        config: Any,
        seconds: float,
        state: dict[str, Any],
    ) -> Allocation:
        unique = {device.id: device for device in devices}
        shared_with = await offload(lambda: self._shared_with(claim, unique))
        return Allocation(
            resource=part.resource,
            devices=tuple(unique[device_id] for device_id in sorted(unique)),
            deadline=time.monotonic() + seconds,
            state=state,
            claim=claim,
            request=part.request,
            config=config,
            consumed=part.consumed,
            share_id=part.share_id,
            admin_access=part.is_admin,
            joined_env=self.backend.joined_env,
            shared_with=shared_with,
        )

    def _shared_with(self, claim: Claim, ids: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return the other claims that have one of these devices, by device."""
        names: dict[str, set[str]] = {}
        for record in self._records():
            if record.claim.uid != claim.uid:
                for use in record.owed:
                    if use.device_id in ids:
                        names.setdefault(use.device_id, set()).add(record.held.name)
        return {device_id: tuple(sorted(found)) for device_id, found in names.items()}

    def _parameters(self, record: Record) -> Parameters:
        """Return what a claim was prepared with, as far as this version of the backend understands it."""
        try:
            return read_parameters(record.config, driver=self._driver, declared=self.backend.config)
        except ClaimError as error:
            logger.warning("%s: released() of claim %s gets no config: %s", self._driver, record.claim.uid, error)
            return Parameters()


def _work(claim: Claim, part: ClaimPart) -> str:
    """Return what the release of a part is called, to know it again."""
    return f"{claim.uid} {part.request} {' '.join(f'{use.device_id}/{use.share_id}' for use in part.uses)}"


def _devices_of(part: ClaimPart, known: Mapping[str, Device]) -> list[Device]:
    """Return the devices of a part.

    Raises:
        ClaimError: One is not there any more.
    """
    devices = [known[use.device_id] for use in part.uses if use.device_id in known]
    if len(devices) < len(part.uses):
        raise ClaimError(f"request {part.request}: a device has just gone; the kubelet asks again")
    return devices
