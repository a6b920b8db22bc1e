"""Which devices wait because a container can touch them under another name."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

import kdp
from kdp.supervision.holdings import Holding, Judgment, Present, judge

ONE, TWO = "example.com/one", "example.com/two"


def device(device_id: str, *nodes: str, identity: str = "", unit: str | None = None) -> kdp.Device:
    return kdp.Device(id=device_id, edits=kdp.ContainerEdits.of_node(*nodes), identity=identity, unit=unit)


def present(
    *devices: kdp.Device,
    resource: str = ONE,
    joined: Mapping[str, str] | None = None,
    nodes: Mapping[str, tuple[str, ...]] | None = None,
) -> Present:
    """Return the devices of a resource; ``nodes`` are the things behind paths."""
    found = Present()
    found.add(devices, nodes=nodes or {}, resource_of=lambda _: resource, joined_env=joined or {})
    return found


def holding(found: Present, each: kdp.Device, *, boot_id: str = "", joined: Mapping[str, str] | None = None) -> Holding:
    """Return a device of `ONE` as a container got it."""
    nodes = [node.host_path for node in each.edits.device_nodes]
    return Holding(
        name=(ONE, each.id), given=found.given((ONE, each.id), each, joined or {}, named=nodes, boot_id=boot_id)
    )


def withheld(verdict: Judgment) -> dict[str, str]:
    return {device_id: str(held) for (_, device_id), held in verdict.withheld.items()}


def test_a_device_that_a_pod_holds_was_offered_under_another_resource() -> None:
    card = device("card-0", "/dev/zero")
    held = [holding(present(card), card)]
    verdict = judge(present(card, resource=TWO), held, boot_id="")
    assert withheld(verdict) == {"card-0": f"held as card-0 of {ONE} by a pod"}
    assert [each.id for each in verdict.answering[ONE, "card-0"]] == ["card-0"]


def test_a_device_that_a_pod_holds_was_offered_under_another_id() -> None:
    old = device("ttyUSB0", "/dev/ttyUSB0", identity="serial 1")
    new = device("usb-ttyUSB0", "/dev/ttyUSB0", identity="serial 1")
    verdict = judge(present(new), [holding(present(old), old)], boot_id="")
    assert withheld(verdict).keys() == {"usb-ttyUSB0"}
    assert verdict.answering.keys() == {(ONE, "ttyUSB0")}


def test_another_card_in_the_slot_of_one_that_a_pod_holds_was_offered() -> None:
    """Its old name must not be Healthy: the container would open the other card at its next start."""
    old, new = device("GPU-1", "/dev/gpu0", identity="GPU-1"), device("GPU-2", "/dev/gpu0", identity="GPU-2")
    verdict = judge(present(new), [holding(present(old), old)], boot_id="")
    assert withheld(verdict).keys() == {"GPU-2"}
    assert not verdict.answering


def test_the_parts_of_another_card_in_the_slot_were_offered() -> None:
    old = [device(f"A-{n}", "/dev/card0", unit="A") for n in range(2)]
    new = [device(f"B-{n}", "/dev/card0", unit="B") for n in range(2)]
    held = [holding(present(*old), old[0])]
    assert withheld(judge(present(*new), held, boot_id="")).keys() == {"B-0", "B-1"}
    assert not judge(present(*old), held, boot_id="").withheld


def test_sharing_that_is_switched_on_or_off_waits_for_the_pods() -> None:
    whole, replicas = device("a", "/dev/a"), [device(f"a::{n}", "/dev/a", unit="a") for n in range(2)]
    on = judge(present(*replicas), [holding(present(whole), whole)], boot_id="")
    assert withheld(on).keys() == {"a::0", "a::1"}
    assert on.answering.keys() == {(ONE, "a")}
    off = judge(present(whole), [holding(present(*replicas), replicas[0])], boot_id="")
    assert withheld(off).keys() == {"a"}
    assert off.answering.keys() == {(ONE, "a::0")}


def test_more_replicas_are_offered_at_once() -> None:
    few, many = ([device(f"a::{n}", "/dev/a", unit="a") for n in range(count)] for count in (2, 4))
    assert not judge(present(*many), [holding(present(*few), few[0])], boot_id="").withheld


def test_control_nodes_are_shared() -> None:
    cards = [device(f"gpu{n}", f"/dev/gpu{n}", "/dev/ctl") for n in range(3)]
    two = judge(present(cards[1], cards[2]), [holding(present(*cards[:2]), cards[0])], boot_id="")
    assert not two.withheld  # although gpu0, which is held, is gone
    one = [holding(present(cards[0]), cards[0])]
    assert not judge(present(*cards), one, boot_id="").withheld
    assert withheld(judge(present(cards[1]), one, boot_id="")).keys() == {"gpu1"}


def test_the_seats_of_a_node_are_shared() -> None:
    seats = [device(f"seat-{n}", "/dev/null") for n in range(12)]
    held = [holding(present(*seats[:9]), seats[8])]
    assert len(held[0].given.reach["/dev/null"]) == 8
    assert not judge(present(*seats), held, boot_id="").withheld
    assert not judge(present(*seats[:4]), held, boot_id="").withheld
    others = [device(f"place-{n}", "/dev/null") for n in range(2)]
    assert withheld(judge(present(*others), held, boot_id="")).keys() == {"place-0", "place-1"}


def test_a_node_under_another_name_is_the_same_node() -> None:
    """A link is edited, or udev names the node anew: the kernel's number stays."""
    old, new = device("x", "/dev/by-id/x"), device("y", "/dev/by-path/y")
    held = holding(present(old, nodes={"/dev/by-id/x": ("c 188:0",)}), old, boot_id="1")
    now = present(new, nodes={"/dev/by-path/y": ("c 188:0",)})
    assert withheld(judge(now, [held], boot_id="1")).keys() == {"y"}
    assert not judge(now, [held], boot_id="2").withheld


def test_a_link_counts_by_what_it_means_now() -> None:
    old, new = device("x", "/dev/by-id/x"), device("y", "/dev/tty1")
    held = holding(present(old, nodes={"/dev/by-id/x": ("c 188:0",)}), old)
    now = present(new, nodes={"/dev/tty1": ("c 188:1",)})
    assert not judge(now, [held], boot_id="").withheld
    now.look(["/dev/by-id/x"], lambda _: ("c 188:1",))
    assert withheld(judge(now, [held], boot_id="")).keys() == {"y"}


def test_functions_of_one_isolation_group_exclude_each_other() -> None:
    groups = {f"/dev/vfio/devices/vfio{n}": (f"c 511:{n}", "IOMMU group 41") for n in range(2)}
    functions = [device(f"f{n}", f"/dev/vfio/devices/vfio{n}") for n in range(2)]
    found = present(*functions, nodes=groups)
    assert withheld(judge(found, [holding(found, functions[0])], boot_id="")).keys() == {"f1"}


def test_a_card_is_known_by_the_variable_that_names_it_to_the_runtime() -> None:
    joined = {"VISIBLE": ","}

    def gpu(device_id: str, index: int) -> kdp.Device:
        return kdp.Device(id=device_id, edits=kdp.ContainerEdits(env={"VISIBLE": str(index), "MODE": "fast"}))

    old = gpu("GPU-1", 0)
    held = holding(present(old, gpu("GPU-2", 1), joined=joined), old, joined=joined)
    now = present(gpu("GPU-3", 0), gpu("GPU-2", 1), joined=joined)
    assert withheld(judge(now, [held], boot_id="")).keys() == {"GPU-3"}


def test_a_node_that_two_had_for_a_moment_was_offered_for_ever() -> None:
    """The pod was admitted while the numbers were swapped: for that moment both devices had the node."""
    then = [device("w0", "/dev/a"), device("w1", "/dev/a")]
    held = holding(present(*then), then[0])
    now = present(device("w0", "/dev/b"), device("w1", "/dev/a"))
    assert withheld(judge(now, [held], boot_id="")).keys() == {"w1"}


def test_a_device_that_could_not_be_described_had_another_node() -> None:
    old = device("w0", "/dev/a")
    unknown = kdp.Device(id="w0", health=kdp.Health.unhealthy("no answer"), is_described=False)
    held = holding(present(old), old)
    assert withheld(judge(present(unknown, device("w1", "/dev/a")), [held], boot_id="")).keys() == {"w1"}
    assert not judge(present(unknown, device("w1", "/dev/b")), [held], boot_id="").withheld


def test_another_class_has_its_own_control_node() -> None:
    """One function of a network card, and one of a GPU: both have /dev/vfio/vfio, and nothing else in common."""
    theirs, ours = device("a", "/dev/vfio/12", "/dev/vfio/vfio"), device("b", "/dev/vfio/41", "/dev/vfio/vfio")
    held = attrs.evolve(holding(present(theirs), theirs), is_foreign=True)
    assert not judge(present(ours), [held], boot_id="").withheld
    renamed = device("c", "/dev/vfio/12", "/dev/vfio/vfio")
    assert withheld(judge(present(renamed), [held], boot_id="")).keys() == {"c"}


def test_a_card_with_fewer_parts_came_into_the_slot() -> None:
    """The part that the pod holds is gone, and the others have the ids of the parts that shared its node."""
    old = [device(f"slot0-{n}", "/dev/card0", unit="slot0", identity="serial 1") for n in range(3)]
    new = [device(f"slot0-{n}", "/dev/card0", unit="slot0", identity="serial 2") for n in range(2)]
    held = [holding(present(*old), old[2])]
    assert not judge(present(*old[:2]), held, boot_id="").withheld
    assert withheld(judge(present(*new), held, boot_id="")).keys() == {"slot0-0", "slot0-1"}
