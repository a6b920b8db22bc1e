"""What the plugin watcher does next."""

from __future__ import annotations

from kdp_testkit.reconciler import FIRST_BACKOFF, MAX_BACKOFF, KnownPlugin, Reconciler


def registered(reconciler: Reconciler, now: float, path: str = "/a") -> KnownPlugin:
    [operation] = reconciler.due(now)
    assert isinstance(operation, tuple)
    plugin = KnownPlugin(path, operation[1], "example.com/widget", path)
    reconciler.registered(plugin)
    reconciler.finished(path, failed=False, now=now)
    return plugin


def test_a_socket_is_registered_once() -> None:
    reconciler = Reconciler()
    assert list(reconciler.due(0)) == []
    reconciler.seen("/a")
    registered(reconciler, 0)
    assert list(reconciler.due(1)) == []


def test_an_operation_under_way_is_not_started_twice() -> None:
    reconciler = Reconciler()
    reconciler.seen("/a")
    reconciler.seen("/b")
    assert [operation[0] for operation in reconciler.due(0) if isinstance(operation, tuple)] == ["/a", "/b"]
    assert list(reconciler.due(1)) == []


def test_a_socket_that_is_removed_is_unregistered() -> None:
    reconciler = Reconciler()
    reconciler.seen("/a")
    plugin = registered(reconciler, 0)
    reconciler.gone("/a")
    assert list(reconciler.due(1)) == [plugin]
    reconciler.forgotten("/a")
    reconciler.finished("/a", failed=False, now=1)
    assert list(reconciler.due(2)) == []


def test_a_socket_that_is_made_again_is_unregistered_first_and_registered_on_the_next_look() -> None:
    reconciler = Reconciler()
    reconciler.seen("/a")
    plugin = registered(reconciler, 0)
    reconciler.gone("/a")
    reconciler.seen("/a")
    assert list(reconciler.due(1)) == [plugin]
    reconciler.forgotten("/a")
    reconciler.finished("/a", failed=False, now=1)
    registered(reconciler, 2)


def test_failures_back_off_doubling_up_to_two_minutes_and_a_success_ends_that() -> None:
    reconciler = Reconciler()
    reconciler.seen("/a")
    now, waits = 0.0, []
    for _ in range(12):
        assert len(list(reconciler.due(now))) == 1
        reconciler.finished("/a", failed=True, now=now)
        start = now
        while True:
            now += 0.25
            started = list(reconciler.due(now))
            if started:
                break
        waits.append(now - start)
        reconciler.finished("/a", failed=True, now=now)
        waits.pop()
        waits.append(now - start)
        now += MAX_BACKOFF * 2
    assert waits[0] == FIRST_BACKOFF + 0.25
    assert waits[-1] == MAX_BACKOFF + 0.25
    assert waits == sorted(waits)
    registered(reconciler, now + 1000)
    reconciler.seen("/a")
    assert len(list(reconciler.due(now + 1000))) == 1


def test_a_new_instance_inherits_the_backoff_of_its_path() -> None:
    reconciler = Reconciler()
    reconciler.seen("/a")
    list(reconciler.due(0))
    reconciler.finished("/a", failed=True, now=0)
    reconciler.gone("/a")
    reconciler.seen("/a")
    assert list(reconciler.due(0.5)) == []
    assert len(list(reconciler.due(0.51))) == 1


def test_a_plugin_that_is_not_forgotten_after_a_failure_is_never_tried_again() -> None:
    reconciler = Reconciler()
    reconciler.seen("/a")
    [operation] = reconciler.due(0)
    assert isinstance(operation, tuple)
    reconciler.registered(KnownPlugin("/a", operation[1], "r", "/a"))
    reconciler.finished("/a", failed=True, now=0)
    assert list(reconciler.due(1000)) == []
