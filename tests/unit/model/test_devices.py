from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.errors import InvalidNameError, InvalidValueError
from kdp.model.claims import RequestPolicy
from kdp.model.devices import Device, Health, Version
from kdp.model.quantities import Quantity

from .. import strategies
from ..strategies import effort


def test_the_handle_is_neither_compared_nor_shown() -> None:
    assert Device(id="a", handle=object()) == Device(id="a", handle=object())
    assert "secret" not in repr(Device(id="a", handle="secret"))


@pytest.mark.parametrize(("nodes", "found"), [([1, 0, 1], (0, 1)), ([-1, 2], (2,))])
def test_numa_nodes_are_sorted_and_minus_one_means_none(nodes: list[int], found: tuple[int, ...]) -> None:
    assert Device(id="a", numa_nodes=nodes).numa_nodes == found


@pytest.mark.parametrize("node", [64, True])
def test_a_numa_node_is_a_small_number(node: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"^NUMA node .*: must be a number from 0 to 63; for example 0$"):
        Device(id="a", numa_nodes=[node])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"id": ""}, "^device id ''"),
        (
            {"id": "a", "health": True},
            r"^health True: must be kdp.Health; for example kdp.Health.unhealthy\('fan failed'\)$",
        ),
        ({"id": "a", "edits": {}}, r"^edits \{\}: must be kdp.ContainerEdits, this is a dict$"),
        ({"id": "a", "resource": "widget"}, "^resource name 'widget'"),
        ({"id": "a", "attributes": {"x-y": 1}}, "^attribute name 'x-y'"),
        ({"id": "a", "attributes": {"x": 1.5}}, r"^attribute x=1.5: must be bool, int, str or kdp.Version$"),
        ({"id": "a", "capacity": {"x": "80Gi"}}, r"^capacity x='80Gi': must be int or kdp.Quantity"),
        (
            {"id": "a", "shareable": {"x": RequestPolicy(default=1)}},
            "^device 'a': shareable 'x' must be one of its capacities: it has none$",
        ),
        (
            {"id": "a", "capacity": {"x": 1}, "shareable": {"x": RequestPolicy(default=2)}},
            "^device 'a': shareable 'x': default 2 must not be more than its capacity 1$",
        ),
        ({"id": "a", "consumes": {"gpu": {}}}, "^consumes 'gpu': must name at least one counter"),
        ({"id": "a", "consumes": {"gpu": {"x": -1}}}, "^consumes gpu: counter x=-1: must be 0 or more"),
        ({"id": "a", "taints": ["x"]}, "^taint 'x': must be kdp.Taint"),
    ],
)
def test_wrong_values_are_refused_where_they_are_made(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidValueError, InvalidNameError), match=message):
        Device(**arguments)


@pytest.mark.parametrize(("given", "kept"), [(True, {}), (False, None)])
def test_shareable_is_a_word_or_a_policy_for_each_capacity(given: Any, kept: Any) -> None:
    assert Device(id="a", shareable=given).shareable == kept


def test_counted_devices_are_alike_but_for_their_ids() -> None:
    devices = Device.counted("seat", 3)
    assert [device.id for device in devices] == ["seat-0", "seat-1", "seat-2"]
    assert Device.counted("seat", 0) == []
    with pytest.raises(InvalidValueError, match=r"^count -1: must be 0 or more; for example 10$"):
        Device.counted("seat", -1)


@pytest.mark.parametrize("text", ["550.54.15", "1.2.3-rc.1+build.5"])
def test_semantic_versions(text: str) -> None:
    assert str(Version(text)) == text


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("6.14.14.2", "6.14.14"),
        ("580.159.03", "580.159.3"),
        (" v5.2\n", "5.2.0"),
        ("7-rc1 (Debian)", "7.0.0"),
        ("1.2.3-rc.1+build.5", "1.2.3-rc.1+build.5"),
        ("v1234567890123456789", None),
        ("devel-3.1", None),
        ("", None),
        ("٣.1.2", None),
    ],
)
def test_what_a_driver_says_of_its_version(text: str, version: str | None) -> None:
    assert Version.parse(text) == (version and Version(version))


@pytest.mark.parametrize(
    "text",
    ["1.2", "01.2.3", "v1.2.3", "1.2.3\n", "1.2.٣", "1234567890123456789.0.0", "1.0.0-rc.1234567890123456789"],
)
def test_other_versions_are_refused_with_an_example(text: str) -> None:
    rule = r"must be MAJOR\.MINOR\.PATCH of at most 18 digits each, for example '550\.54\.15'"
    with pytest.raises(InvalidValueError, match=rule):
        Version(text)


def test_versions_had_no_order_so_that_texts_were_compared() -> None:
    # The examples of Semantic Versioning 2.0.0, section 11, and two that differ as texts.
    ordered = [
        *("1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11"),
        *("1.0.0-rc.1", "1.0.0", "1.0.0+2", "2.3.0", "2.10.0", "999999999999999999.0.0"),
    ]
    assert [str(each) for each in sorted(map(Version, reversed(ordered)))] == ordered
    assert Version("2.3.0") < Version("2.10.0") >= Version("2.10.0")
    with pytest.raises(TypeError):
        assert Version("2.10.0") < "2.3.0"  # type: ignore[operator]


def test_an_unhealthy_device_without_a_reason_was_healthy(caplog: pytest.LogCaptureFixture) -> None:
    for reason in (None, "", " \n"):
        assert Health.unhealthy(reason) == Health("its backend gave no reason")
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1500m", "1.5"),
        ("80Gi", str(80 * 2**30)),
        ("1Ei", str(2**60)),
        ("1E3", "1000"),
        ("-2.5k", "-2500"),
        (".5", "0.5"),
        ("100n", "0.0000001"),
    ],
)
def test_quantities_in_kubernetes_notation(text: str, value: str) -> None:
    assert Quantity(text).value == Decimal(value)
    assert str(Quantity(text)) == text


@pytest.mark.parametrize("text", ["", "1K", "1.2.3", "1\n", "1e999999999"])
def test_other_quantities_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r": must be a number with a Kubernetes suffix; for example '80Gi'$"):
        Quantity(text)


def test_equal_amounts_are_equal_however_written() -> None:
    assert Quantity("1Ki") == Quantity("1024") == Quantity("1.024k")
    assert hash(Quantity("1Ki")) == hash(Quantity("1024"))
    assert Quantity("1Ki") != Quantity("1k")
    assert Quantity("1k") < Quantity("1Ki") <= Quantity("1024")
    assert Quantity("1k") != "1k"


@effort(100)
@given(strategies.quantities, strategies.quantities)
def test_quantities_are_ordered_as_their_amounts(one: Quantity, other: Quantity) -> None:
    assert (one == other) == (Fraction(one.value) == Fraction(other.value))
    assert (one < other) == (Fraction(one.value) < Fraction(other.value))
    assert one != other or hash(one) == hash(other)


def test_a_negative_capacity_was_published() -> None:
    for wrong in (-1, Quantity("-1Gi")):
        with pytest.raises(InvalidValueError, match=rf"^capacity memory={wrong}: must be 0 or more; leave out a capac"):
            Device(id="gpu-0", capacity={"memory": wrong})


@pytest.mark.parametrize("name", ["memory", "vram", "example.com/globalMemory", "gpuRam", "frameBuffer"])
def test_memory_in_mebibytes_was_published_as_bytes(name: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):  # each discovery makes the device again
        Device(id="gpu-0", capacity={name: 81559})
    (record,) = caplog.records
    assert record.getMessage() == (
        f"capacity {name}=81559 means 81559 bytes; write kdp.Quantity('81559Mi') if the number is MiB, or "
        "kdp.Quantity('81559') if it is bytes"
    )


def test_amounts_that_need_no_unit_or_have_one_are_not_doubted(caplog: pytest.LogCaptureFixture) -> None:
    Device(id="gpu-0", capacity={"memory": Quantity("36Ki"), "multiprocessors": 48, "vram": 80 * 2**30, "hbm": 0})
    assert not caplog.records


@effort(80)
@given(strategies.devices)
def test_devices_are_values(device: Device) -> None:
    assert attrs.evolve(device) == device
    assert hash(attrs.evolve(device)) == hash(device)
    assert attrs.evolve(device, handle=object()) == device
    assert device.unit
    assert list(device.numa_nodes) == sorted(set(device.numa_nodes))


@effort(40)
@given(strategies.versions, st.booleans())
def test_versions_are_values(version: Version, shown: bool) -> None:
    assert Version(version.text) == version
    assert Version(str(version)) in {version}


class Integer:
    """As numpy's."""

    def __index__(self) -> int:
        return 3


def test_an_integer_of_a_library_was_refused() -> None:
    number: Any = Integer()
    cards = {"card": {"slots": number}}
    device = Device(
        id="a", numa_nodes=[number], attributes={"slot": number}, capacity={"memory": number}, consumes=cards
    )
    assert device.numa_nodes == (3,)
    assert (device.attributes, device.capacity, device.consumes) == ({"slot": 3}, {"memory": 3}, {"card": {"slots": 3}})
    assert all(type(each) is int for each in (*device.numa_nodes, device.attributes["slot"], device.capacity["memory"]))
    assert len(Device.counted("w", number)) == 3
    assert RequestPolicy(default=number, valid_values=number).valid_values == (3,)


def test_one_numa_node_was_a_bare_error() -> None:
    one: Any = 1
    assert Device(id="a", numa_nodes=one).numa_nodes == (1,)
    for value in (1.5, True, ["0"]):
        wrong: Any = value
        with pytest.raises(InvalidValueError, match="must be a number from 0 to 63; for example 0"):
            Device(id="a", numa_nodes=wrong)


def test_one_card_that_could_not_be_described_took_all_cards_away() -> None:
    def made(version: str) -> Device:
        if not version:
            raise OSError("no such attribute")
        return Device(id=f"card-{version}", attributes={"firmware": Version(version)})

    good, wrong, gone = Device.each(["1.2.3", "2.10", ""], made, id=lambda version: f"card-{version or 'x'}")
    assert good == made("1.2.3")
    assert wrong.health.reason is not None
    assert wrong.health.reason.startswith("it cannot be described: version '2.10': must be MAJOR.MINOR.PATCH")
    assert (gone.id, gone.health.reason) == ("card-x", "it cannot be described: no such attribute")
    with pytest.raises(ZeroDivisionError):
        Device.each(["1.2.3"], lambda _: Device(id=str(1 / 0)), id=str)


def test_an_empty_reason_from_an_empty_file_ended_a_discovery() -> None:
    assert Health.unhealthy("").reason == "its backend gave no reason"
