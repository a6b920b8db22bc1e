from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.deviceplugin.registration import SocketNames
from kdp.errors import InvalidNameError
from kdp.kubelet.sockets import check_length
from kdp.storage.addresses import MAX_SOCKET_PATH_BYTES

from .. import strategies
from ..strategies import effort

DIRECTORY = Path("/var/lib/kubelet/device-plugins")


def test_a_name_says_whose_it_is_and_is_never_used_twice() -> None:
    names = [SocketNames(DIRECTORY, "example.com/widget") for _ in range(3)]
    assert names[0].prefix == "kdp-example.com_widget-"
    paths = {n.path(generation) for n in names for generation in range(1, 50)}
    assert len(paths) == 3 * 49
    assert all(path.name.startswith(names[0].prefix) and path.suffix == ".sock" for path in paths)


@effort(80)
@given(
    strategies.resource_names, st.integers(1, 999_999), st.text("dü", min_size=1, max_size=60).map(lambda d: "/" + d)
)
def test_every_name_can_be_bound_or_the_directory_is_refused(resource: str, generation: int, directory: str) -> None:
    try:
        names = SocketNames(Path(directory), resource)
    except InvalidNameError:
        # "kdp-", 8 of the resource, a token of 8 and a generation of 6 digits with their hyphens, ".sock" and a dot.
        assert len(os.fsencode(directory)) + 1 + 4 + 8 + 1 + 8 + 1 + 6 + 5 + 1 > MAX_SOCKET_PATH_BYTES
        return
    path = names.path(generation)
    check_length(path)
    assert len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES
    assert path.parent == Path(directory)


@effort(100)
@given(strategies.resource_names, strategies.resource_names, st.sampled_from(["/d", "/" + "d" * 60]))
def test_two_resources_have_two_prefixes(one: str, other: str, directory: str) -> None:
    same = SocketNames(Path(directory), one).prefix == SocketNames(Path(directory), other).prefix
    assert same == (one == other)


def test_a_directory_without_room_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidNameError, match=r"^socket path '/d+/kdp-.*': must have at most 107 bytes, this has "):
        SocketNames(Path("/" + "d" * 90), "example.com/widget")


def test_a_resource_whose_name_goes_on_was_taken_for_the_same() -> None:
    one, other = (SocketNames(DIRECTORY, f"acme.example/{name}") for name in ("dsp", "dsp-slot"))
    assert one.has_made(one.path(1).name)
    assert not one.has_made(other.path(1).name)
    assert not other.has_made(one.path(1).name)
