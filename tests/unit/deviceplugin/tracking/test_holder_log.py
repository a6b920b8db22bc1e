"""Which pods got devices, and which gave them back."""

from __future__ import annotations

from kdp.concurrency.history import History
from kdp.deviceplugin.tracking.holder_log import HolderLog
from kdp.kubelet.podresources import Holder

R = "example.com/w"
A, B = Holder("default", "a", "main"), Holder("default", "b", "main")


def log() -> tuple[HolderLog, History]:
    history = History()
    made = HolderLog(history)
    made.listed({(R, "w0"): (A,)}, is_complete=True)
    return made, history


def told(history: History) -> list[tuple[str, str, str, tuple[str, ...]]]:
    return [(event.kind, event.subject, event.text, event.devices) for event in history.events]


def test_what_pods_hold_at_first_is_no_news() -> None:
    assert told(log()[1]) == []


def test_a_pod_that_gets_devices_is_one_event() -> None:
    holders, history = log()
    holders.listed({(R, "w0"): (A,), (R, "w1"): (B,), (R, "w2"): (B,)}, is_complete=True)
    assert told(history) == [("held", R, "by default/b (main)", ("w1", "w2"))]


def test_a_pod_that_gave_devices_back_is_named() -> None:
    holders, history = log()
    holders.listed({}, is_complete=True)
    holders.listed({}, is_complete=True)
    assert told(history) == [("released", R, "by default/a (main)", ("w0",))]


def test_a_kubelet_that_does_not_know_its_pods_yet_gives_nothing_back() -> None:
    holders, history = log()
    holders.listed({}, is_complete=False)
    holders.listed({(R, "w0"): (A,)}, is_complete=True)
    assert told(history) == []


def test_a_device_that_changed_hands_was_given_back_also_if_the_list_is_not_complete() -> None:
    holders, history = log()
    holders.listed({(R, "w0"): (B,)}, is_complete=False)
    assert [(kind, text) for kind, _, text, _ in told(history)] == [
        ("released", "by default/a (main)"),
        ("held", "by default/b (main)"),
    ]
