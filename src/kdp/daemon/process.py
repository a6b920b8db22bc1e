"""`run`: the entry of a plugin's process, from the first line to the exit code."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import importlib
import logging
import os
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NoReturn, Unpack

from ..errors import ConfigurationError, InvalidValueError, PluginDirectoryGoneError
from ..startup import collections_off
from . import logs
from .limits import check_limits
from .notify import Notifier
from .plan import ServingPlan, check_backends
from .serving import Daemon
from .settings import SETTINGS
from .signals import Signals
from .sources import from_environment, from_keywords, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ..model.backend import DeviceBackend
    from .readiness import Rejection
    from .settings import RunOptions

    Follow = Callable[[Callable[[], None]], Coroutine[object, object, None]]

logger = logging.getLogger(__name__)

loading: ContextVar[str | None] = ContextVar("kdp_loading", default=None)
"""The target whose module is being loaded by the command: its last line must not start to serve then."""

STOPPED, FAILED, MISCONFIGURED, DIRECTORY_GONE = 0, 1, 2, 3


def silence_grpc() -> None:
    """Keep gRPC's C core from writing lines of its own to stderr, into the middle of ours.

    Only before grpc is imported for the first time, and only where the environment does not say otherwise.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def prepare_process() -> Signals:
    """Take over signals, crashes, and the C core's output before any code of the vendor runs.

    Raises:
        ConfigurationError: This is not the main thread, or a limit of the process is too low.
    """
    check_limits()
    silence_grpc()
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # a crash in a C library would end the process without a line
    signals = Signals()
    signals.start()
    return signals


def run(*backends: DeviceBackend, **options: Unpack[RunOptions]) -> NoReturn:
    """Serve backends as this process's only work: the last line of a plugin's program.

    It never reads ``sys.argv``: options are keyword arguments, then the variables ``KDP_*``, then defaults. It takes
    over SIGTERM, SIGINT (orderly stop), SIGHUP (discover again) and SIGQUIT (dump all stacks), and configures logging
    unless the program has done so. Two seconds after a request to stop the process is gone, whatever still hangs.

    Args:
        *backends: Objects of subclasses of `DeviceBackend`.
        **options: As in `kdp.daemon.settings.RunOptions`.

    Raises:
        SystemExit: The process has served, or its configuration is wrong; the codes are in `kdp.daemon`.
        ConfigurationError: The command ``kdp`` is still loading the module that calls it.
    """
    if (target := loading.get()) is not None:
        raise ConfigurationError(
            f"target {target!r}: its module calls kdp.run while it is loaded; expected that call under "
            f"if __name__ == '__main__':"
        )
    try:
        signals = prepare_process()
        layers = [from_keywords(options, function="kdp.run"), from_environment(os.environ)]
        plan = ServingPlan(check_backends(backends), resolve(layers))
    except ConfigurationError as error:
        asked = options.get("log_format") or os.environ.get(SETTINGS["log_format"].variable, "")
        sys.stderr.write(logs.refusal(str(error), as_json=asked.strip().lower() == "json"))
        raise SystemExit(MISCONFIGURED) from None
    raise SystemExit(run_plan(plan, signals=signals))


def run_plan(
    plan: ServingPlan,
    *,
    signals: Signals,
    read_again: Callable[[], ServingPlan] | None = None,
    rejection: Rejection | None = None,
    last_good: Callable[[], ServingPlan | None] = lambda: None,
    follow: Follow | None = None,
    proved: Callable[[ServingPlan], object] = lambda _: None,
) -> int:
    """Serve a plan until a signal asks to stop, and return the exit code; SIGHUP reads the configuration again.

    ``rejection`` says why the plan is that of an earlier configuration; ``last_good`` returns that of one if this plan
    cannot be served. ``follow`` runs besides, and may ask for the configuration to be read again, as SIGHUP does.
    ``proved`` is told of a plan that has discovered.
    """

    def take(new: ServingPlan) -> None:
        logs.configure(new.settings, keeps_recent=new.socket is not None)

    take(plan)
    daemon = Daemon(plan, read_again=read_again, changed=take, rejection=rejection, last_good=last_good, proved=proved)
    with collections_off():  # `_keep_what_is_loaded` switches them on again
        code = _run_loop(plan, signals, daemon, follow)
    signals.end(code)
    return code


_SERVING: Final = {"device-plugin": "deviceplugin.manager", "dra": "dra.driver", "dra-controller": "dra.controller"}
"""What `kdp.daemon.services` needs in each mode."""


def _keep_what_is_loaded(mode: str) -> None:
    """Exclude everything loaded so far, gRPC above all, from garbage collection: it lives as long as the process."""
    importlib.import_module(f"..{_SERVING[mode]}", __package__)
    gc.freeze()
    gc.enable()


def _run_loop(plan: ServingPlan, signals: Signals, daemon: Daemon, follow: Follow | None) -> int:
    import anyio

    async def main() -> None:
        notifier = Notifier(os.environ)
        besides = [] if follow is None else [follow(daemon.reload)]
        background = [asyncio.create_task(each) for each in (notifier.follow(daemon.status), *besides)]

        def stop() -> None:
            for task in background:
                task.cancel()
            notifier.stopping()
            scope.cancel()

        with anyio.CancelScope() as scope:
            signals.attach(asyncio.get_running_loop(), stop=stop, reload=daemon.reload)
            _keep_what_is_loaded(plan.settings.mode)  # a signal that broke into the loading of gRPC would crash it
            await daemon.serve()

    try:
        anyio.run(main, backend_options={"loop_factory": signals.new_loop})
    except PluginDirectoryGoneError as error:
        logger.critical("ending: %s", error)
        return DIRECTORY_GONE
    except (ConfigurationError, InvalidValueError) as error:
        logger.critical("ending: %s", error)
        return MISCONFIGURED
    except Exception:
        logger.critical("ending because of an error that is a bug of kdp", exc_info=True)
        return STOPPED if signals.asked_to_stop else FAILED
    logger.info("stopped")
    return STOPPED
