"""What is left out, and comparing with what was left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp_testkit.recording.redaction import Bindings, Redaction
from kdp_testkit.recording.transcript import Writer, read


def reply(**fields: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {"envs": {}, "mounts": [], "devices": [], "annotations": {}, "cdi_devices": []}
    return {"message": {"container_responses": [nothing | fields]}}


def redacted(redaction: Redaction, **fields: Any) -> dict[str, Any]:
    content = redaction.content("Allocate", reply(**fields), answer=True)
    answer: dict[str, Any] = content["message"]["container_responses"][0]
    return answer


def test_equal_values_have_equal_stand_ins_in_the_whole_recording() -> None:
    redaction = Redaction(["env"])

    first = redacted(redaction, envs={"A": "secret", "B": "secret", "C": "other"})["envs"]
    again = redacted(redaction, envs={"D": "other"})["envs"]

    assert first == {"A": "redacted-env-1", "B": "redacted-env-1", "C": "redacted-env-2"}
    assert again == {"D": "redacted-env-2"}


def test_only_what_was_asked_for_is_left_out() -> None:
    mount = {"host_path": "/opt/a", "container_path": "/a", "read_only": True}
    assert redacted(Redaction(), envs={"A": "x"}, mounts=[mount]) == redacted(
        Redaction(["env"]), envs={}, mounts=[mount]
    ) | {"envs": {"A": "x"}}
    assert redacted(Redaction(["paths"]), envs={"A": "x"})["envs"] == {"A": "x"}


def test_paths_in_the_text_of_an_error_are_the_same_stand_ins() -> None:
    redaction = Redaction(["paths"])
    node = {"host_path": "/dev/gpu0", "container_path": "/dev/gpu0", "permissions": "rw"}
    redacted(redaction, devices=[node])

    text = redaction.text("device node /dev/gpu0 is gone, and/or /dev/gpu1: 3/4 left")

    assert text == "device node /redacted/path-1 is gone, and/or /redacted/path-2: 3/4 left"
    assert Redaction(["env"]).text("/dev/gpu0") == "/dev/gpu0"


def test_an_error_does_not_quote_a_value_of_the_environment() -> None:
    redaction = Redaction(["env"])
    redacted(redaction, envs={"TOKEN": "hunter2-token"})

    known = redaction.text("the token hunter2-token was refused")
    unknown = redaction.text("env KEY='s3cret one' and LICENSE=abc-def: refused, device \"w0\"")

    assert known == "the token redacted-env-1 was refused"
    assert not [secret for secret in ("s3cret", "abc-def") if secret in unknown]
    assert redacted(redaction, envs={}, annotations={"a": "x hunter2-token"})["annotations"] == {
        "a": "x redacted-env-1"
    }


def test_a_value_that_is_seen_late_is_left_out_of_the_lines_before(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r.jsonl", redaction=Redaction(["env"]))
    writer.end(writer.call("kubelet", "Allocate", b"", resource="a/b"), "plugin", "UNKNOWN", "bad hunter2-token here")
    answer = v1beta1.AllocateResponse(
        container_responses=[v1beta1.ContainerAllocateResponse(envs={"T": "hunter2-token"})]
    )
    number = writer.call("kubelet", "Allocate", b"", resource="a/b")
    writer.answer(number, "plugin", "Allocate", answer.SerializeToString())
    writer.close()

    assert "hunter2" not in (tmp_path / "r.jsonl").read_text()
    assert read(tmp_path / "r.jsonl").is_whole


def test_bytes_are_left_out_with_everything_in_them() -> None:
    content = {**reply(envs={"A": "secret"}), "bytes": "c2VjcmV0"}
    assert "bytes" not in Redaction(["env"]).content("Allocate", content, answer=True)
    assert "bytes" not in Redaction(["env"]).content("Allocate", {"bytes": "c2VjcmV0"}, answer=True)
    assert Redaction().content("Allocate", content, answer=True) == content


@pytest.mark.parametrize(
    ("pairs", "same"),
    [
        ([("redacted-env-1", "a"), ("redacted-env-1", "b")], False),
        ([("redacted-env-1", "a"), ("redacted-env-2", "a")], False),
        ([("/redacted/path-1", "/dev/a"), ("node /redacted/path-1 is gone", "node /dev/a is gone")], True),
        ([("/redacted/path-1", "/dev/a"), ("node /redacted/path-1 is gone", "node /dev/b is gone")], False),
        ([("/redacted/path-1", "no path")], False),
        ([({"a": "redacted-env-1"}, {"a": "x"}), ("redacted-env-1", "x")], True),
    ],
)
def test_a_stand_in_is_equal_to_what_it_stood_for_first(pairs: list[tuple[Any, Any]], same: bool) -> None:
    bindings = Bindings(["env", "paths"])
    assert [bindings.same(recorded, now) for recorded, now in pairs][-1] is same


def test_where_nothing_was_left_out_a_stand_in_is_a_text_like_any_other() -> None:
    assert not Bindings().same("redacted-env-1", "a")


def test_what_was_not_the_same_binds_nothing() -> None:
    bindings = Bindings(["env"])
    assert not bindings.same({"a": "redacted-env-1", "b": "x"}, {"a": "one", "b": "y"})
    assert bindings.same("redacted-env-1", "two")
