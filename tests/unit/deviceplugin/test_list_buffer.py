from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.deviceplugin import list_buffer
from kdp.deviceplugin.list_buffer import ListBuffer

from ..mutants import holds
from ..strategies import effort

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType


def filled(*names: str) -> ListBuffer:
    buffer = ListBuffer()
    put(buffer, *names)
    return buffer


def put(buffer: ListBuffer, *names: str) -> None:
    for name in names:
        buffer.put(name, f"<{name}>".encode())


def drop(buffer: ListBuffer, *names: str) -> None:
    for name in names:
        buffer.drop(name)


def listed(buffer: ListBuffer) -> list[str]:
    return sorted(buffer.message().decode().strip("<>").split("><"))


def test_a_changed_device_costs_no_second_message() -> None:
    """The list of ten thousand is half a megabyte: a flip must not copy it when nobody holds the one before."""
    names = [f"{number:050}" for number in range(10_000)]
    buffer = filled(*names)
    size = len(buffer.message())
    tracemalloc.start()
    try:
        for name in names[::1000]:
            buffer.put(name, f"[{name}]".encode())
            buffer.message()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert buffer.message().count(b"[") == 10
    assert peak < size / 2


def test_blocks_that_have_become_empty_are_given_back() -> None:
    """Ids that came and went left an empty block behind each time, and every message joined them all."""
    buffer, before = ListBuffer(), list[str]()
    for generation in range(50):
        names = [f"{generation}-{number}" for number in range(300)]
        drop(buffer, *before)  # as the inventory does: the old ones go before new devices come
        put(buffer, *names)
        assert listed(buffer) == sorted(names)
        before = names
    assert len(buffer._blocks) <= 6
    drop(buffer, *before)
    assert buffer.message() == b""
    assert not buffer._blocks


Step = tuple[int, int, bool]
"""Which device, how many bytes more it has (-1: it goes), and whether the message is asked for."""


def lead(steps: Iterable[Step], module: ModuleType, *, many: int, block: int) -> None:
    """Put and drop devices, and compare each message with what was put, and those that are held with what they were."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        patch.setattr(module, "_MANY", many)
        buffer, model, held = module.ListBuffer(), dict[str, bytes](), list[tuple[bytes, list[bytes]]]()
        for number, (device, size, look) in enumerate(steps):
            device_id = str(device)
            if size >= 0:
                model[device_id] = b"%d%s" % (number, b"-" * size)
                buffer.put(device_id, model[device_id] + b">")
            elif model.pop(device_id, None) is not None:
                buffer.drop(device_id)
            if look:
                message = buffer.message()
                holds(1, pieces(message) == sorted(model.values()), f"{message!r} is not {model}")
                if number % 2:  # the others are changed in place
                    held.append((message, sorted(model.values())))
            holds(2, all(buffer._blocks), "there is an empty block")
        holds(1, all(buffer.get(i) == piece + b">" for i, piece in model.items()), "what was put is not there")
        holds(1, all(pieces(message) == before for message, before in held), "what was handed out has changed")


def pieces(message: bytes) -> list[bytes]:
    return sorted(message.split(b">")[:-1])


@effort(300)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 30), st.booleans())), st.integers(0, 8), st.integers(1, 9)
)
def test_the_buffer_holds_what_was_put_whatever_came_and_went(steps: list[Step], many: int, block: int) -> None:
    lead(steps, list_buffer, many=many, block=block)
