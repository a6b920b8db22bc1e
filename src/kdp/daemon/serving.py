"""What runs between start and stop, in a process of ours or inside somebody's program.

`Daemon` holds one `PluginManager` at a time, or one `DraDriver`, or one `PoolController`. Reading the configuration
again keeps it and its streams, unless a setting or a backend's parameter changed that only a new one can take; then the
old one stops in order and a new one starts, in the same process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
from contextlib import AbstractContextManager, asynccontextmanager, closing, nullcontext
from typing import TYPE_CHECKING, Any, Final, NoReturn, Unpack, cast, final

import attrs

from .._version import __version__
from ..concurrency import threads
from ..concurrency.history import History
from ..errors import ConfigurationError, InvalidValueError, KdpError, sentence
from ..operations.status_facts import ProcessFacts, facts_of, moment
from ..supervision.hook_note import open_note
from .mode_lock import ModeLock
from .places import beside, warn_of_closed_kubelet, warn_of_missing_places, warn_of_unusable_state, written_places
from .plan import ServingPlan, check_backends
from .readiness import Readiness, Rejection, judged
from .services import check_client, managing
from .sources import from_environment, from_keywords, resolve, warn_of_slips

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from ..kubelet.calls import CallCounts
    from ..model.backend import DeviceBackend
    from ..operations.cluster_reporter import ClusterCounts
    from ..operations.directories import Directories
    from ..operations.feature_files import FeatureFiles
    from ..operations.metrics import Metrics, Reader
    from ..operations.reading import Configuration
    from ..operations.status_document import StatusDocument
    from ..operations.status_facts import Facts
    from ..supervision.hook_note import HookNote
    from ..supervision.service import BaseStatus, Service
    from .settings import ServeOptions, Settings

logger = logging.getLogger(__name__)

_FELL_BACK: Final = (
    "the last good configuration is in force, because the new one is bad: %s; mend it, and send SIGHUP or restart"
)

SCRAPE_DEADLINE: Final = 0.5
"""Seconds within which the event loop must give the numbers for ``/metrics``; after that, the last ones are shown."""

COPY_PAUSE: Final = 60.0
"""Seconds after which the status is copied although nobody asked; the last copy is shown if the event loop blocks."""

LOOK_PAUSE: Final = 10.0
"""Seconds between two looks at the state directory while somebody asks."""

SCRAPE_PAUSE: Final = 0.2
"""Seconds for which one text is the answer to all clients."""


@final
class Daemon:
    """Serves a plan until it is cancelled, which is the orderly stop.

    Args:
        read_again: Reads the configuration again, for `reload`. Called in a thread of its own, because it may run code
            of the vendor. None: the plan stays as it is.
        changed: Told of a new plan before it is taken.
        proved: Told of a plan when all its backends have discovered with it, or have found no hardware. Called in a
            thread, because it may write a file.
        rejection: Why the plan is that of an earlier configuration; None: it is not.
        last_good: Returns the plan of an earlier configuration, for a first one that nothing can serve; None: there is
            none. Called in a thread.
    """

    def __init__(
        self,
        plan: ServingPlan,
        *,
        read_again: Callable[[], ServingPlan] | None = None,
        changed: Callable[[ServingPlan], object] = lambda _: None,
        proved: Callable[[ServingPlan], object] = lambda _: None,
        rejection: Rejection | None = None,
        last_good: Callable[[], ServingPlan | None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._last_good = last_good
        self._refused: Exception | None = None
        self._read_again = read_again
        self._changed = changed
        self._proved = proved
        self._rejection = rejection
        self._manager: Service | None = None
        self._waiting: ModeLock | None = None
        self._served: ServingPlan | None = None
        self._facts = ProcessFacts(mode=plan.settings.mode, node=plan.settings.node_name)
        self._counts: CallCounts | None = None
        self._told: ClusterCounts | None = None
        self._directories: Directories | None = None
        self._history: History | None = None
        self._labels: FeatureFiles | None = None
        self._copy: tuple[float, _Seen] | None = None
        self._state_problem: str | None = None
        self._look_again_at = 0.0
        self._is_asked = asyncio.Event()
        self._reload_asked = asyncio.Event()

    def reload(self) -> None:
        """Read the configuration again and discover again. Call it in the event loop; many calls count as one."""
        self._reload_asked.set()

    def status(self) -> BaseStatus | None:
        """Return where everything stands now; None: nothing runs yet, or not any more. Call it in the event loop."""
        return None if self._manager is None else self._manager.status()

    async def serve(self) -> NoReturn:
        """Serve until cancelled.

        Raises:
            PluginDirectoryGoneError: Only a new process can help.
            ConfigurationError: The first plan cannot be served, and no earlier configuration helps.
        """
        note = self._note_hooks()
        try:
            await self._serve(note)
        finally:
            if note is not None:
                note.close()

    def _note_hooks(self) -> HookNote | None:
        """Begin the note of the hooks that run, and log those that ran when the process before ended."""
        socket = self._plan.socket
        note = None if socket is None else open_note(socket.with_suffix(".hooks"))
        if note is not None and note.before is not None:
            process, hooks = note.before
            logger.error(
                "the process before this one (%s) crashed or was killed while %s ran; kubectl logs --previous has its "
                "last lines",
                *(process, " and ".join(hooks)),
            )
        return note

    async def _serve(self, note: HookNote | None) -> NoReturn:
        warn_of_slips(os.environ)
        if self._rejection is not None:
            logger.warning(_FELL_BACK, self._rejection.reason)
        while True:
            plan = self._plan
            for state in plan.states:
                state.note = note
            try:
                warn_of_closed_kubelet(plan.settings)
                warn_of_missing_places(plan.settings)
                warn_of_unusable_state(plan.settings)
                if self._served is None:  # later, it is said, and all goes on without
                    check_client(plan.settings)
                self._begin_history(plan)
                with self._probes(plan):
                    managed = managing(plan, self._counts, self._history, self._why_rejected, self._told)
                    async with self._alone(plan), managed as self._manager:
                        self._served = plan
                        async with self._labelled(plan, self._manager):
                            await self._until_changed(self._manager, plan)
            except ExceptionGroup as group:
                await self._fall_back(plan, _cause(group))
            except (ConfigurationError, InvalidValueError) as error:
                await self._fall_back(plan, error)
            except _PlanChangedError:
                self._served = self._served or plan  # what has waited is what a bad one falls back on
            finally:
                self._manager = None
            logger.info("restarting with the changed configuration")

    async def _fall_back(self, plan: ServingPlan, error: Exception) -> None:
        """Serve an earlier plan instead of one that nothing could serve.

        Raises:
            Exception: The error, if it is not of a new plan, or no earlier one helps.
        """
        if self._served is plan or not isinstance(error, (ConfigurationError, InvalidValueError)):
            raise error
        if self._served is not None:
            logger.error("the previous configuration stays in force: %s", error)
            self._plan = self._served
        else:
            if self._refused is not None:
                raise self._refused  # it is not only the file
            self._refused = error
            found = await threads.run(self._last_good, name="kdp-reload")
            if found is None:
                raise error
            logger.warning(_FELL_BACK, error)
            self._plan = found
        self._reject(str(error))
        self._changed(self._plan)

    def _begin_history(self, plan: ServingPlan) -> None:
        """Record events from now on, if commands can ask for them. Those from before a reload stay."""
        if plan.socket is None:
            self._history = None
        elif self._history is None:
            self._history = History()
            self._history.add("started", text=f"kdp {__version__}, mode {plan.settings.mode}")
            if self._rejection is not None:
                self._history.add("rejected", text=self._rejection.reason)

    @asynccontextmanager
    async def _alone(self, plan: ServingPlan) -> AsyncGenerator[None]:
        """Keep the other mode out, for as long as this one serves."""
        settings, self._waiting = plan.settings, None
        if settings.state_dir is None or settings.mode == "dra-controller":  # which serves no device of this node
            yield
            return
        pause = functools.partial(self._pause, plan)
        self._waiting = ModeLock(settings.state_dir, settings.mode, plan.keys, pause=pause)
        async with self._waiting:
            yield

    async def _pause(self, plan: ServingPlan, seconds: float) -> None:
        """Pause while the other mode is there; read the configuration again if that is asked meanwhile.

        Raises:
            _PlanChangedError: The plan that waits is not the one to be served any more.
        """
        try:
            await asyncio.wait_for(self._reload_asked.wait(), seconds)
        except TimeoutError:
            return
        self._reload_asked.clear()
        await self._read_plan()
        if self._plan.needs_new_manager(plan):
            raise _PlanChangedError

    @asynccontextmanager
    async def _labelled(self, plan: ServingPlan, manager: Service) -> AsyncGenerator[None]:
        """Keep the node's labels in files, if they are on."""
        if plan.settings.labels == "off":
            yield
            return
        import anyio

        from ..operations.feature_files import FeatureFiles

        self._labels = FeatureFiles(plan.settings.labels_dir, plan.keys)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._labels.run, manager)
                yield
                tasks.cancel_scope.cancel()
        finally:
            self._labels = None

    async def _until_changed(self, manager: Service, plan: ServingPlan) -> None:
        import anyio

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.failed)
            tasks.start_soon(self._prove, manager, self._plan)  # it may have been read again while this one waited
            tasks.start_soon(self._keep_copies, plan.settings)
            if self._directories is not None:
                tasks.start_soon(self._directories.follow)
            while not self._plan.needs_new_manager(plan):
                await self._reload_asked.wait()
                self._reload_asked.clear()
                await self._read_plan()
                if not self._plan.needs_new_manager(plan):
                    manager.rescan()
                    tasks.start_soon(self._prove, manager, self._plan)
            tasks.cancel_scope.cancel()

    async def _keep_copies(self, settings: Settings) -> None:
        """Look at the state directory when somebody asks; keep a copy of the status for when the event loop blocks."""
        import anyio

        from .places import why_nothing_is_kept

        if settings.http is None and self._plan.socket is None:
            return
        while True:
            # Without a thread or a descriptor, the next look tries again.
            with contextlib.suppress(RuntimeError, OSError, ImportError):
                self._state_problem = await threads.run(
                    functools.partial(why_nothing_is_kept, settings), name="kdp-disk"
                )
                self._look()
            self._look_again_at = time.monotonic() + LOOK_PAUSE
            self._is_asked.clear()
            with anyio.move_on_after(COPY_PAUSE):
                await self._is_asked.wait()

    async def _prove(self, manager: Service, plan: ServingPlan) -> None:
        """Tell of a plan once each backend has discovered, or has found out that its hardware is not there."""
        for supervisor in manager.supervisors:
            found = supervisor.discovery
            while found.value.problem is not None and not found.value.is_absent:
                await found.after(found.version)
        await threads.offload(functools.partial(self._proved, plan))

    async def _read_plan(self) -> None:
        if self._read_again is None:
            logger.info("discovering again, as asked")
            if self._history is not None:
                self._history.add("reloaded", text="discovering again, as asked")
            return
        try:
            self._plan = (await threads.run(self._read_again, name="kdp-reload")).following(self._plan)
        except (ConfigurationError, InvalidValueError) as error:
            logger.error("the previous configuration stays in force: %s", error)
            self._reject(str(error))
        except Exception as error:
            logger.exception("the previous configuration stays in force: reading it again failed")
            self._reject(sentence(error))
        else:
            self._rejection = None
            self._changed(self._plan)
            logger.info("configuration read again")
            if self._history is not None:
                self._history.add("reloaded", text="the configuration was read again")

    def _bad(self) -> Rejection | None:
        """Return the fault of the configuration or of a backend's file; `None` if all of them are in force."""
        problems = (file.problem for file in self._plan.watched_files)
        of_files = (Rejection(reason=problem[0], since=problem[1]) for problem in problems if problem is not None)
        return self._rejection or next(of_files, None)

    def _why_rejected(self) -> str | None:
        bad = self._bad()
        return None if bad is None else bad.reason

    def _reject(self, reason: str) -> None:
        if self._rejection is None or self._rejection.reason != reason:
            self._rejection = Rejection(reason=reason, since=time.time())
        if self._history is not None:
            self._history.add("rejected", text=reason)

    def _probes(self, plan: ServingPlan) -> AbstractContextManager[object]:
        settings, path = plan.settings, plan.socket
        if settings.http is None and path is None:
            return nullcontext()
        from .logs import recent
        from .probes import Page, Probes, log_page, status_page

        facts = attrs.evolve(self._facts, mode=settings.mode, node=settings.node_name)
        facts = attrs.evolve(facts, directories=settings.directories, settings=settings.changed)
        pages: dict[str, Page[Any]] = {}
        if path is not None:
            pages["/status.json"] = status_page(self._look_for_people, functools.partial(self._document, facts))
        if path is not None and (lines := recent()) is not None:
            pages["/log"] = log_page(lines.text)
        if (metrics := self._metrics(plan)) is not None:
            pages["/metrics"] = Page(
                look=metrics.read,
                show=metrics.text,
                kind=metrics.content_type,
                is_private=False,
                names_pods=settings.metrics == "pods",
                deadline=SCRAPE_DEADLINE,
                pause=SCRAPE_PAUSE,
            )
        make = functools.partial(
            Probes,
            readiness=self._readiness,
            path=path,
            shows_all=settings.http_details == "all",
            pages=pages,
            node=settings.node_name,
            why_blocked=self._why_blocked,
        )
        try:
            return closing(make(settings.http))
        except ConfigurationError as error:
            if self._served is not plan:
                raise
            logger.error("going on without probes: %s", error)
            return nullcontext() if path is None else closing(make(None))

    def _metrics(self, plan: ServingPlan) -> Metrics | None:
        self._directories = None
        if plan.settings.metrics == "off":
            return None
        try:
            from ..operations.directories import Directories
            from ..operations.metrics import Metrics
        except ConfigurationError as error:  # its library is missing
            if self._served is None:
                raise
            logger.error("going on without metrics: %s", error)
            return None
        if plan.settings.metrics == "pods" and plan.settings.mode == "dra-controller":
            logger.warning(
                "--metrics pods: a controller sees no pods, so no series names one; give it to the nodes' drivers"
            )
        driver = plan.driver if plan.settings.mode == "dra" else None
        self._directories = Directories(written_places(plan.settings, driver))
        return Metrics(
            version=__version__,
            mode=plan.settings.mode,
            service=lambda: self._manager,
            reader=self._reader(plan.settings),
            directories=self._directories,
            configuration=self._configuration,
        )

    def _configuration(self) -> Configuration:
        from ..operations.reading import Configuration

        return Configuration(self._plan.text, self._bad() is not None)

    def _reader(self, settings: Settings) -> Reader:
        """Return what reads the numbers of a mode; those that were counted before a reload go on."""
        if settings.mode == "device-plugin":
            from ..deviceplugin.counts import PluginCounts
            from ..operations.plugins import PluginsReader

            counts = self._counts = self._counts if isinstance(self._counts, PluginCounts) else PluginCounts()
            if settings.asks_cluster and self._told is None:
                from ..operations.cluster_reporter import ClusterCounts

                self._told = ClusterCounts()
            return PluginsReader(
                counts,
                names_pods=settings.metrics == "pods",
                needs_devices=settings.when_no_devices == "not-ready",
                cluster=self._told,
            )
        from ..kubelet.calls import CallCounts
        from ..operations.drivers import DriversReader

        self._counts = self._counts or CallCounts()
        return DriversReader(self._counts, names_pods=settings.metrics == "pods")

    def _readiness(self) -> Readiness:
        return self._look()[1]

    async def _look_for_people(self) -> _Seen:
        """Return the same for the status document, which names the pods of devices."""
        if self._manager is not None:
            await self._manager.look_at_holders()
        return self._look()

    def _look(self) -> _Seen:
        """Return where everything stands, what the probe says of that, and what else there is to see."""
        status = self.status()
        seen = status, self._judged(status), facts_of(self._manager, self._history)
        self._copy = time.time(), seen
        if time.monotonic() >= self._look_again_at:
            self._is_asked.set()
        return seen

    def _why_blocked(self) -> str:
        """Return the sentence for an event loop that does not answer. Called in another thread."""
        from .probes import BLOCKED, SLOW_START

        status = None if self._copy is None else self._copy[1][0]
        return SLOW_START if status is None or not (status.parts or status.absent) else BLOCKED

    def _document(self, facts: ProcessFacts, seen: _Seen | None) -> StatusDocument:
        """Return the status document of what was seen; None: the event loop is blocked, and the last copy counts."""
        from ..operations.status import document  # late: a start does not need it

        notes: dict[str, object] = {}
        if seen is None:
            notes = {"reason": self._why_blocked()}
            if self._copy is None:
                return document(facts, None, is_ready=False, notes=notes)
            at, seen = self._copy
            notes["as_of"] = moment(at)
        status, readiness, more = seen
        is_ready = readiness.is_ready and not notes
        return document(facts, status, is_ready=is_ready, notes={**readiness.details, **notes}, more=more)

    def _judged(self, status: BaseStatus | None) -> Readiness:
        return judged(
            status,
            self._plan.settings,
            waits_for=None if self._waiting is None else self._waiting.problem,
            rejection=self._bad(),
            labels=None if self._labels is None else self._labels.as_json(),
            state_problem=self._state_problem,
        )


class _PlanChangedError(Exception):
    """Ends the waiting for the other mode: the configuration says something else by now."""


_Seen = tuple["BaseStatus | None", "Readiness", "Facts"]


def _cause(group: ExceptionGroup[Exception]) -> Exception:
    """Return the one error of a group that says most: kdp's own before others."""
    ours = group.subgroup(KdpError)
    first, *others = (ours or group).exceptions
    if ours is None and others:
        return group
    return _cause(cast("ExceptionGroup[Exception]", first)) if isinstance(first, ExceptionGroup) else first


async def serve(*backends: DeviceBackend, **options: Unpack[ServeOptions]) -> NoReturn:
    """Serve backends inside a running asyncio program, until cancelled.

    Cancelling it is the orderly stop: streams end first, calls in flight get 1.5 s, the sockets are removed. It leaves
    signals, logging and environment of the program alone; gRPC's C core writes to stderr as it likes unless the
    program sets ``GRPC_VERBOSITY=NONE`` before it imports grpc.

    Args:
        *backends: Objects of subclasses of `DeviceBackend`.
        **options: As in `kdp.daemon.settings.ServeOptions`; what is not given comes from the variables ``KDP_*``.
            With a ``device_plugin_dir`` of a test, the kubelet's other directories and the state are beside it unless
            they are given; ``cdi_dir`` and ``labels_dir`` are not.

    Raises:
        ConfigurationError: An option or a backend is wrong, or this is not asyncio.
        PluginDirectoryGoneError: The plugin directory is unlinked under us; only a new process (a new mount) helps.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "kdp.serve was awaited outside asyncio; gRPC supports no other event loop, so use asyncio.run or anyio.run"
        ) from None
    layers = [from_keywords(options, function="kdp.serve"), from_environment(os.environ)]
    settings = beside(resolve(layers), {name for layer in layers for name in layer})
    await Daemon(ServingPlan(check_backends(backends), settings)).serve()
