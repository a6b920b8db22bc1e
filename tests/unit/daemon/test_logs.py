from __future__ import annotations

import io
import json
import logging
import logging.config
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kdp.daemon import logs
from kdp.daemon.logs import EXTRA_KEYS, JsonFormatter, TextFormatter, configure, write_now
from kdp.daemon.settings import Settings
from kdp.supervision import log_guard


def record(message: str, *args: object, error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord("kdp.deviceplugin", logging.WARNING, __file__, 1, message, args, info)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    vars(made).update(extra)
    return made


def test_a_text_line_has_time_level_logger_and_sentence() -> None:
    line = TextFormatter().format(record("%s: registered", "example.com/widget"))
    assert line == "2023-11-14T22:13:20.250Z WARNING kdp.deviceplugin: example.com/widget: registered"


def test_a_text_line_adds_only_what_the_sentence_does_not_say() -> None:
    line = TextFormatter().format(record("widget w0 is gone", device_id="w0", resource="example.com/widget"))
    assert line.endswith("widget w0 is gone (resource=example.com/widget)")


def test_a_json_line_has_documented_keys_only() -> None:
    line = json.loads(JsonFormatter().format(record("gone: %s", "x", device_id="w0", unheard_of=1, resource=None)))
    assert line == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "kdp.deviceplugin",
        "msg": "gone: x",
        "device_id": "w0",
    }
    assert "unheard_of" not in EXTRA_KEYS


def test_a_traceback_is_text_of_its_own_key() -> None:
    try:
        raise ValueError("boom")
    except ValueError as error:
        failed = record("discover failed", error=error)
    assert json.loads(JsonFormatter().format(failed))["exc"].endswith("ValueError: boom")
    assert TextFormatter().format(failed).endswith("ValueError: boom")


@contextmanager
def new_process() -> Iterator[logging.Logger]:
    """Give the root logger as a new process has it; inside the test, because pytest adds handlers of its own to it."""
    logger = logging.getLogger()
    handlers, level, hook = logger.handlers[:], logger.level, threading.excepthook
    asyncio_level = logging.getLogger("asyncio").level
    logger.handlers[:] = []
    try:
        yield logger
    finally:
        log_guard.guard(lambda _: None)
        logs._restored.clear()  # pyright: ignore[reportPrivateUsage]
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logging.getLogger("asyncio").setLevel(asyncio_level)
        threading.excepthook = hook
        logging.captureWarnings(False)


def test_a_program_that_has_configured_logging_keeps_it() -> None:
    theirs = logging.StreamHandler(io.StringIO())
    with new_process() as root:
        root.addHandler(theirs)
        root.setLevel(logging.ERROR)
        configure(Settings(log_level="debug"))
        assert root.handlers == [theirs]
        assert root.level == logging.ERROR
        assert theirs.formatter is None


def dict_config() -> None:
    own = {"f": {"class": "logging.NullHandler"}}
    logging.config.dictConfig({"version": 1, "handlers": own, "root": {"handlers": ["f"], "level": "CRITICAL"}})


@pytest.mark.parametrize(
    ("silence", "way"),
    [
        (logging.disable, "by logging.disable(CRITICAL)"),
        (lambda: logging.getLogger().handlers.clear(), "by removing its handler"),
        (lambda: logging.getLogger("kdp").setLevel(logging.CRITICAL), "by disabling its loggers"),
        (
            dict_config,
            "by removing its handler and by the root logger's level CRITICAL and by disabling its loggers",
        ),
    ],
)
def test_a_library_that_silenced_the_log_was_not_told_of(
    silence: Callable[[], None], way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with new_process():
        configure(Settings())
        for _ in range(3):
            silence()
            log_guard.look("discover() of Cards")
        logging.getLogger("kdp.supervision.hooks").error("the fan failed")
    first, second = capfd.readouterr().err.splitlines()
    assert first.endswith(f": discover() of Cards silenced kdp's log {way}; kdp has switched it on again")
    assert second.endswith("the fan failed")


def force() -> None:
    logging.basicConfig(force=True, stream=sys.stderr)


def own_handler() -> None:
    ours = logging.getLogger("kdp")
    ours.handlers, ours.propagate = [logging.StreamHandler(sys.stderr)], False


@pytest.mark.parametrize("replace", [force, own_handler])
def test_a_log_that_somebody_writes_otherwise_is_not_written_twice(
    replace: Callable[[], None], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("kdp"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("kdp"), "propagate", True)
    with new_process():
        configure(Settings())
        replace()
        log_guard.look("discover() of Cards")
        logging.getLogger("kdp.supervision.hooks").error("the fan failed")
    [line] = capfd.readouterr().err.splitlines()
    assert "the fan failed" in line


def test_a_program_that_has_configured_logging_may_silence_it() -> None:
    theirs = logging.StreamHandler(io.StringIO())
    with new_process() as root:
        root.addHandler(theirs)
        configure(Settings())
        root.handlers.clear()
        log_guard.look("discover() of Cards")
        assert root.handlers == []


def test_a_thread_that_dies_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)

    def die() -> None:
        raise ValueError("boom")

    with new_process():
        configure(Settings())
        thread = threading.Thread(target=die, name="vendor-poller")
        thread.start()
        thread.join(10)
    assert "ERROR   kdp.daemon.logs: thread vendor-poller ended with an exception" in stream.getvalue()
    assert "ValueError: boom" in stream.getvalue()


def test_the_last_words_wait_for_no_lock(capfd: pytest.CaptureFixture[str]) -> None:
    with new_process() as root:
        configure(Settings(log_format="json"))
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with root.handlers[0].lock or threading.RLock():
                held.set()
                done.wait(10)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(10)
        write_now(logging.WARNING, "ending")
        done.set()
        thread.join(10)
    assert json.loads(capfd.readouterr().err)["msg"] == "ending"
