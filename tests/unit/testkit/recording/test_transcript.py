"""The file format: what is written can be read, and what is damaged is refused with a sentence."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.proto import deviceplugin_v1beta1_pb2 as v1beta1
from kdp_testkit.recording.redaction import Redaction
from kdp_testkit.recording.transcript import RecordingError, Writer, decode, encode, read

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)

DEVICES = st.builds(
    lambda name, health, nodes: v1beta1.Device(
        ID=name,
        health=health,
        topology=None if nodes is None else v1beta1.TopologyInfo(nodes=[v1beta1.NUMANode(ID=node) for node in nodes]),
    ),
    TEXT,
    TEXT,
    st.none() | st.lists(st.integers(-1, 2**40), max_size=3),
)

REPLIES = st.builds(
    v1beta1.ContainerAllocateResponse,
    envs=st.dictionaries(TEXT, TEXT, max_size=3),
    annotations=st.dictionaries(TEXT, TEXT, max_size=3),
    mounts=st.lists(st.builds(v1beta1.Mount, container_path=TEXT, host_path=TEXT, read_only=st.booleans()), max_size=2),
    devices=st.lists(st.builds(v1beta1.DeviceSpec, container_path=TEXT, host_path=TEXT, permissions=TEXT), max_size=2),
    cdi_devices=st.lists(st.builds(v1beta1.CDIDevice, name=TEXT), max_size=2),
)


def as_lines(method: str, payload: bytes) -> dict[str, Any]:
    """Through JSON and back, as a file does it."""
    content: dict[str, Any] = json.loads(json.dumps(decode(method, payload, answer=True)))
    return content


@given(devices=st.lists(DEVICES, max_size=4))
def test_a_device_list_is_decoded_without_loss(devices: list[v1beta1.Device]) -> None:
    message = v1beta1.ListAndWatchResponse(devices=devices)
    content = as_lines("ListAndWatch", message.SerializeToString())

    assert content.keys() == {"message"}
    assert v1beta1.ListAndWatchResponse.FromString(encode("ListAndWatch", content, answer=True)) == message


@given(replies=st.lists(REPLIES, max_size=3))
def test_an_answer_to_allocate_is_decoded_without_loss(replies: list[v1beta1.ContainerAllocateResponse]) -> None:
    message = v1beta1.AllocateResponse(container_responses=replies)
    content = as_lines("Allocate", message.SerializeToString())

    assert content.keys() == {"message"}
    assert v1beta1.AllocateResponse.FromString(encode("Allocate", content, answer=True)) == message


@given(payload=st.binary(max_size=64))
def test_whatever_came_can_be_written_and_comes_out_the_same(payload: bytes) -> None:
    for method in ("Allocate", "ListAndWatch", "GetDevicePluginOptions", "Frobnicate"):
        content = as_lines(method, payload)
        if "bytes" in content:
            assert encode(method, content, answer=True) == payload


def test_unknown_fields_bring_the_bytes() -> None:
    assert as_lines("GetDevicePluginOptions", b"\x08\x01\xfa\x06\x01x").keys() == {"message", "bytes"}


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A small recording with one line of each kind."""
    file = tmp_path / "sample.jsonl"
    writer = Writer(file, redaction=Redaction(), profile="k137")
    writer.kubelet("listening")
    writer.plugin("started")
    request = v1beta1.RegisterRequest(version="v1beta1", endpoint="a.sock", resource_name="example.com/a")
    number = writer.call("plugin", "Register", request.SerializeToString(), resource="example.com/a")
    watch = writer.call("kubelet", "ListAndWatch", b"", resource="example.com/a", registration=number)
    writer.answer(number, "kubelet", "Register", b"")
    listed = v1beta1.ListAndWatchResponse(devices=[v1beta1.Device(ID="ä", health="Healthy")])
    writer.answer(watch, "plugin", "ListAndWatch", listed.SerializeToString())
    writer.end(watch, "plugin", "UNAVAILABLE", "gone")
    writer.kubelet("gone", "why not")
    writer.close()
    writer.close()
    writer.kubelet("listening")
    assert file.stat().st_mode & 0o777 == 0o600, "values of variables are nobody else's business"
    return file


def test_a_recording_is_read_as_it_was_written(sample: Path) -> None:
    recording = read(sample)

    assert (recording.profile, recording.is_whole, recording.redacted) == ("k137", True, frozenset())
    assert [entry.what for entry in recording.entries] == (
        ["kubelet", "plugin", "call", "call", "answer", "answer", "end", "kubelet", "closed"]
    )
    end = recording.entries[6]
    assert (end.method, end.resource, end.registration) == ("ListAndWatch", "example.com/a", 1)
    assert (end.side, end.code, end.detail, end.line) == ("plugin", "UNAVAILABLE", "gone", 8)


@pytest.mark.thorough
def test_a_file_that_is_cut_anywhere_is_refused_with_a_sentence(sample: Path) -> None:
    whole = sample.read_bytes()
    for size in range(len(whole)):
        sample.write_bytes(whole[:size])
        with pytest.raises(RecordingError, match=r"is cut off after|is not a recording"):
            read(sample)
        if size > whole.index(b"\n"):
            partial = read(sample, partial=True)
            assert not partial.is_whole
            assert len(partial.entries) == whole[:size].count(b"\n") - 1


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ('"version": 1', '"version": 2', r"is a recording of version 2; this kdp reads version 1 .*by kdp 0\."),
        ('"what": "plugin"', '"what": "miracle"', "line 3: .*it has the unknown kind 'miracle'"),
        ('"endpoint": "a.sock"', '"endpoint": 7', "line 4: .*this is no request of Register"),
        ('"what": "answer", "call": 1', '"what": "answer", "call": 8', "line 6: .*belongs to call 8, which no line"),
        ('{"t": ', '["t", ', "line 2: is not a line of a recording"),
    ],
)
def test_a_damaged_line_is_named(sample: Path, before: str, after: str, sentence: str) -> None:
    text = sample.read_text()
    assert before in text
    sample.write_text(text.replace(before, after, 1))

    with pytest.raises(RecordingError, match=sentence):
        read(sample)


@pytest.mark.parametrize("text", ["", "[]\n", "\x00\xff"])
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x"
    file.write_text(text)
    with pytest.raises(RecordingError, match="is not a recording"):
        read(file)


def test_a_full_disk_stops_the_writing_and_nothing_else(tmp_path: Path) -> None:
    told: list[str] = []
    writer = Writer(tmp_path / "r", redaction=Redaction())
    writer.on_error = lambda: told.append("now")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        for _ in range(10):
            writer.kubelet("listening")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.close()

    assert told == ["now"]
    assert writer.error is not None
    assert "can no longer be written: File too large" in writer.error
