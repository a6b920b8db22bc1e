"""The claim cache: what the checkpoint keeps, and random lives of claims."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kdp_testkit.dra import objects
from kdp_testkit.dra.claims import ClaimCache, ClaimRefusal, PreparedDevice, judge
from kdp_testkit.dra.pods import DraPod
from kdp_testkit.dra.profiles import profile_named

DRIVER = "gpu.example.com"
PODS = [DraPod(claims={"c": "c"}, name=f"pod-{number}") for number in range(3)]


def _claim(uid: str = "u1") -> dict[str, Any]:
    claim = objects.claim("c")
    claim["metadata"]["uid"] = uid
    claim["status"] = {"allocation": objects.allocation([objects.result(DRIVER, "d0")])}
    return claim


def _device(name: str) -> PreparedDevice:
    return PreparedDevice(requests=("r0",), pool="p", device=name, cdi_ids=(f"{DRIVER}/d={name}",), share_id=None)


def test_a_checkpoint_keeps_all_but_whether_it_is_prepared() -> None:
    cache = ClaimCache(profile_named("k137"))
    batch = cache.refer(PODS[0], [_claim()])[DRIVER]
    cache.answered(DRIVER, batch, {"u1": ((_device("a"),), "")})
    batch[0].is_prepared = True
    again = ClaimCache(profile_named("k137"), cache.to_json())
    entry = again.entries["default", "c"]
    assert (entry.uid, entry.pods, entry.cdi_ids(), entry.is_prepared) == (
        "u1",
        {PODS[0].uid},
        [f"{DRIVER}/d=a"],
        False,
    )
    assert entry.cdi_ids("r1") == []


@pytest.mark.parametrize("text", ["{", '{"Data": "{}", "Checksum": 1}', '{"Data": 5, "Checksum": 1}'])
def test_a_checkpoint_that_cannot_be_read_counts_as_none(text: str) -> None:
    assert ClaimCache(profile_named("k137"), text).entries == {}


def test_null_lists_of_a_real_kubelets_checkpoint_are_read() -> None:
    """Go writes null for an empty list, and 1.34 knows no shares: the whole checkpoint counted as unreadable."""
    device = {"PoolName": "p", "DeviceName": "a", "RequestNames": None, "CDIDeviceIDs": None}
    states = [
        {
            "ClaimUID": f"uid-{name}",
            "ClaimName": name,
            "Namespace": "default",
            "PodUIDs": {"pod": {}},
            "DriverState": {DRIVER: {"Devices": devices}},
        }
        for name, devices in (("prepared", [device]), ("failed", None))
    ]
    data = json.dumps({"kind": "DRACheckpoint", "ClaimInfoStateList": states})
    cache = ClaimCache(profile_named("k134"), json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}))
    read = {name: entry.drivers[DRIVER] for (_, name), entry in cache.entries.items()}
    assert read == {"prepared": [PreparedDevice(requests=(), pool="p", device="a", cdi_ids=())], "failed": []}


@pytest.mark.parametrize("profile", ["k134", "k137"])
def test_134_does_not_remember_shares(profile: str) -> None:
    cache = ClaimCache(profile_named(profile))
    cache.answered(DRIVER, cache.refer(PODS[0], [_claim()])[DRIVER], {"u1": ((_device("a"),), "")})
    assert ("ShareID" in cache.to_json()) == (profile != "k134")


@pytest.mark.parametrize(("profile", "word"), [("k134", "pod"), ("k137", "Pod")])
def test_134_writes_pod_small_where_a_claim_is_another_ones(profile: str, word: str) -> None:
    owned = DraPod(name="p", claims={"c": "c"}, templates=["c"])
    with pytest.raises(ClaimRefusal, match=rf"was not created for {word} default/p \({word} is not owner\)"):
        judge(owned, "c", _claim(), profile_named(profile))


def test_the_same_claim_twice_in_a_pod_is_asked_for_once() -> None:
    cache = ClaimCache(profile_named("k137"))
    assert len(cache.refer(PODS[0], [_claim(), _claim()])[DRIVER]) == 1


def test_up_to_136_a_pod_that_is_not_noted_takes_a_claim_from_another() -> None:
    for profile, asked in (("k136", [DRIVER]), ("k137", [])):
        cache = ClaimCache(profile_named(profile))
        cache.refer(PODS[0], [_claim()])
        assert list(cache.release(PODS[1].uid, [("default", "c")])[1]) == asked, profile


class Lives(RuleBasedStateMachine):
    """Pods come and go; the driver is asked to unprepare when the last one goes, and only then."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = ClaimCache(profile_named("k137"))
        self.users: set[str] = set()
        self.driver_has_it = False

    @rule(pod=st.sampled_from(PODS), fails=st.booleans())
    def start(self, pod: DraPod, fails: bool) -> None:
        batches = self.cache.refer(pod, [_claim()])
        self.users.add(pod.uid)
        if not batches:
            assert self.cache.entries["default", "c"].is_prepared
            return
        self.driver_has_it = True
        batch = batches[DRIVER]
        try:
            self.cache.answered(DRIVER, batch, {"u1": ((_device("a"),), "no" if fails else "")})
        except ClaimRefusal:
            return
        batch[0].is_prepared = True

    @rule(pod=st.sampled_from(PODS))
    def stop(self, pod: DraPod) -> None:
        unused, batches = self.cache.release(pod.uid, self.cache.keys_of(pod.uid))
        was_last = self.users == {pod.uid}
        self.users.discard(pod.uid)
        assert bool(unused) == bool(batches) == was_last
        for batch in batches.values():
            self.cache.unprepared(batch, {"u1": ""})
            self.cache.forget(batch)
            self.driver_has_it = False

    @rule()
    def restart(self) -> None:
        self.cache = ClaimCache(profile_named("k137"), self.cache.to_json())

    @invariant()
    def agrees(self) -> None:
        assert self.cache.pods() == self.users
        assert bool(self.users) == self.driver_has_it
        for entry in self.cache.entries.values():
            assert len(entry.cdi_ids()) <= 1, "answers replace one another"


TestLives = Lives.TestCase
