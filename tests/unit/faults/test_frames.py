"""HTTP/2 frames: cut anywhere, put together again, and made as RFC 9113 says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.faults import frames
from tests.faults.frames import Frame, FrameReader

FRAMES = st.builds(
    Frame,
    type=st.integers(0, 255),
    flags=st.integers(0, 255),
    stream=st.integers(0, 2**31 - 1),
    payload=st.binary(max_size=70) | st.just(bytes(70_000)),
)


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 200), max_size=8), st.booleans())
def test_bytes_cut_anywhere_give_the_same_frames(sent: list[Frame], cuts: list[int], preface: bool) -> None:
    data = (frames.PREFACE if preface else b"") + b"".join(frame.encode() for frame in sent)
    reader = FrameReader(preface=preface)
    said, read, place = b"", list[Frame](), 0
    for end in (*sorted(cuts), len(data)):
        part, whole = reader.feed(data[place:end])
        said, read, place = said + part, read + whole, max(place, end)
    assert said == (frames.PREFACE if preface else b"")
    assert read == sent


def test_frames_are_made_as_the_specification_says() -> None:
    assert frames.settings({4: 1, 5: 65_536}).encode() == bytes.fromhex(
        "00000c 04 00 00000000 0004 00000001 0005 00010000"
    )
    assert frames.window_update(3, 7).encode() == bytes.fromhex("000004 08 00 00000003 00000007")
    assert frames.ping(b"12345678").encode() == bytes.fromhex("000008 06 00 00000000") + b"12345678"
    assert frames.goaway("bye", code=2).encode() == bytes.fromhex("00000b 07 00 00000000 00000000 00000002") + b"bye"
    assert frames.read_settings(frames.settings({4: 1, 0xFFFF: 2**32 - 1})) == {4: 1, 0xFFFF: 2**32 - 1}


def test_only_settings_and_pings_are_acknowledged() -> None:
    assert Frame(frames.PING, frames.ACK, 0, bytes(8)).is_ack
    assert not Frame(frames.PING, 0, 0, bytes(8)).is_ack
    assert not Frame(frames.DATA, 1, 3, b"").is_ack, "END_STREAM has the same bit"
