"""Which freedom a plugin has, and in which words a difference is told."""

from __future__ import annotations

from typing import Any

import pytest

from kdp_testkit.recording.compare import answer_differences, error_differences, list_differences, register_differences
from kdp_testkit.recording.redaction import Bindings


def device(name: str, health: str = "Healthy", *nodes: int) -> dict[str, Any]:
    return {"ID": name, "health": health} | ({"topology": {"nodes": [{"ID": n} for n in nodes]}} if nodes else {})


def listed(*devices: dict[str, Any]) -> dict[str, Any]:
    return {"message": {"devices": [*devices]}}


def reply(**fields: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {"envs": {}, "mounts": [], "devices": [], "annotations": {}, "cdi_devices": []}
    return {"message": {"container_responses": [nothing | fields]}}


def node(path: str, permissions: str = "rw", *, host: str | None = None) -> dict[str, str]:
    return {"container_path": path, "host_path": host or path, "permissions": permissions}


@pytest.mark.parametrize(
    ("recorded", "now", "difference"),
    [
        (listed(device("a"), device("b")), listed(device("b"), device("a")), None),
        (listed(device("a")), None, "recorded a list, now none came"),
        (listed(device("a")), listed(), "devices that are missing now: a"),
        (listed(), listed(device("a")), "devices that were not recorded: a"),
        (
            listed(device("a", "Healthy", 0)),
            listed(device("a")),
            "device a: recorded Healthy on NUMA 0, now Healthy",
        ),
        (
            listed(device("a")),
            listed(device("a"), device("a", "sick")),
            "device a: recorded Healthy, now Healthy and sick",
        ),
    ],
)
def test_a_list_is_compared_device_by_device(
    recorded: dict[str, Any], now: dict[str, Any] | None, difference: str | None
) -> None:
    assert list_differences(recorded, now) == ([difference] if difference else [])


def test_many_differences_are_told_in_a_few_lines() -> None:
    before = listed(*(device(f"d{number:02}") for number in range(40)))
    after = listed(*(device(f"d{number:02}", "sick") for number in range(40)))
    lines = list_differences(before, after)
    assert (len(lines), lines[-1]) == (6, "and 35 more")
    assert list_differences(before, listed()) == ["devices that are missing now: d00, d01, d02, d03, d04 and 35 more"]


@pytest.mark.parametrize(
    ("recorded", "now", "differences"),
    [
        ({"envs": {"A": "1"}}, {"envs": {"A": "2"}}, ["env A: recorded '1', now '2'"]),
        ({}, {"annotations": {"a": "1"}}, ["annotation a: not recorded, now '1'"]),
        ({"devices": [node("/a"), node("/b")]}, {"devices": [node("/b"), node("/a")]}, []),
        ({"devices": [node("/a")]}, {"devices": [node("/a", "r")]}, ["device node /a at /a (rw): now /a at /a (r)"]),
        ({"devices": [node("/a")]}, {"devices": [node("/a")] * 2}, ["device node /a at /a (rw): not recorded"]),
        (
            {"cdi_devices": [{"name": "v/c=a"}, {"name": "v/c=b"}]},
            {"cdi_devices": [{"name": "v/c=b"}, {"name": "v/c=a"}]},
            ["CDI devices: recorded v/c=a, v/c=b, now v/c=b, v/c=a"],
        ),
    ],
)
def test_an_answer_to_allocate_is_compared_field_by_field(
    recorded: dict[str, Any], now: dict[str, Any], differences: list[str]
) -> None:
    assert answer_differences("Allocate", reply(**recorded), reply(**now), Bindings()) == differences


def test_the_number_of_container_responses_counts() -> None:
    none: dict[str, Any] = {"message": {"container_responses": []}}
    assert answer_differences("Allocate", reply(), none, Bindings()) == ["container responses: recorded 1, now 0"]


def test_a_mount_says_whether_it_can_be_written() -> None:
    before = {"container_path": "/a", "host_path": "/opt/a", "read_only": True}
    (line,) = answer_differences(
        "Allocate", reply(mounts=[before]), reply(mounts=[before | {"read_only": False}]), Bindings()
    )
    assert line == "mount /opt/a at /a (read-only): now /opt/a at /a (read-write)"


def test_the_order_of_preferred_ids_is_free_and_their_choice_is_not() -> None:
    def preferred(*ids: str) -> dict[str, Any]:
        return {"message": {"container_responses": [{"deviceIDs": [*ids]}]}}

    method = "GetPreferredAllocation"
    assert not answer_differences(method, preferred("a", "b"), preferred("b", "a"), Bindings())
    assert answer_differences(method, preferred("a"), preferred(), Bindings()) == [
        "preferred ids: recorded a, now none"
    ]


def test_what_cannot_be_decoded_is_compared_as_bytes() -> None:
    assert not answer_differences("Allocate", {"bytes": "AA=="}, {"bytes": "AA=="}, Bindings())
    assert answer_differences("Allocate", {"bytes": "AA=="}, reply(), Bindings())


def test_a_register_is_compared_without_its_socket() -> None:
    recorded = {"version": "v1beta1", "endpoint": "a.sock", "options": {"pre_start_required": True}}
    assert not register_differences(recorded, "v1beta1", (True, False))
    assert register_differences(recorded, "v1", (False, False)) == [
        "API version: recorded 'v1beta1', now 'v1'",
        "options.pre_start_required: recorded True, now False",
    ]


def test_an_error_is_compared_by_code_and_text() -> None:
    assert not error_differences("INTERNAL", "no", ("INTERNAL", "no"), Bindings())
    assert error_differences("INTERNAL", "no", None, Bindings()) == [
        "recorded the error INTERNAL: no, now it is answered"
    ]
    assert error_differences("INTERNAL", "no", ("INTERNAL", "yes"), Bindings()) == [
        "error: recorded INTERNAL: no, now INTERNAL: yes"
    ]
