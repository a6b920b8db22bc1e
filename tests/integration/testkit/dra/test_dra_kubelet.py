"""The simulated kubelet with a bare driver: registration, Prepare, Unprepare, restarts, slices, health."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import grpc
import pytest
from tests.dra_recorder import BOTH, RecordingDriver

from kdp.proto.drahealth.v1 import api_pb2 as health
from kdp_testkit.dra import events, objects
from kdp_testkit.dra.claims import SKIPPING
from kdp_testkit.dra.kubelet import SimulatedDraKubelet
from kdp_testkit.dra.pods import DraContainer, DraPod, PodStartError, PodStopError
from kdp_testkit.dra.profiles import PROFILES as DRA_PROFILES
from kdp_testkit.dra.profiles import DraProfile
from kdp_testkit.dra.status import ApiRefused, Kind
from kdp_testkit.dra.timings import DraTimings
from kdp_testkit.events import PluginNotified

DRIVER = "gpu.example.com"
QUICK = DraTimings(wiping_delay=0.2, health_retry=0.1, watcher=0.02, call=5.0)
PROFILES = ["k134", "k136", "k137"]


class Claims:
    """The API server of these tests: claims in a dict, and which slices were deleted."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Any]] = {}
        self.wiped: list[str] = []
        self.fails = 0

    def allocate(self, name: str, *pods: DraPod, drivers: tuple[str, ...] = (DRIVER,), uid: str = "") -> None:
        claim = objects.claim(name)
        claim["metadata"]["uid"] = uid or f"uid-{name}"
        claim["status"] = {
            "allocation": objects.allocation(objects.result(driver, name) for driver in drivers),
            "reservedFor": objects.reserved(*pods),
        }
        self.claims[name] = claim

    async def ask(self, method: str, path: str) -> dict[str, Any]:
        if method == "DELETE":
            if self.fails:
                self.fails -= 1
                raise ApiRefused(503, "etcd is away")
            self.wiped.append(path.partition("fieldSelector=")[2])
            return {}
        name = path.rpartition("/")[2]
        if "nodes" in path:
            return objects.node(name)
        if name not in self.claims:
            raise Kind("resource.k8s.io", "resourceclaims", "ResourceClaim", namespaced=True).not_found(name)
        return self.claims[name]


@asynccontextmanager
async def kubelet_of(
    claims: Claims, profile: str | DraProfile = "k137", **settings: Any
) -> AsyncIterator[SimulatedDraKubelet]:
    settings = {"timings": QUICK, **settings}
    async with SimulatedDraKubelet(claims.ask, profile=profile, seed=1, **settings) as kubelet:
        yield kubelet


def pod(*names: str, **more: Any) -> DraPod:
    return DraPod(claims={name: name for name in names}, **more)


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_driver_is_found_and_called_in_the_first_version_of_its_list(profile: str) -> None:
    claims = Claims()
    async with kubelet_of(claims, profile) as kubelet:
        old = RecordingDriver(DRIVER, kubelet.root, versions=("v1beta1.DRAPlugin", "v1.DRAPlugin"))
        async with old:
            await kubelet.until_registered(DRIVER)
            user = pod("a")
            claims.allocate("a", user)
            given = await kubelet.start_pod(user)
            assert given == {"main": (f"{DRIVER}/device=a",)}
            assert old.calls == [("NodePrepareResources", "v1beta1", ("a",))]
            assert old.notified == [(True, "")]
            await kubelet.stop_pod(user)
            assert old.methods() == ["NodePrepareResources a", "NodeUnprepareResources a"]
            assert kubelet.claim("a") is None


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ((), "empty list of supported gRPC services (aka supported versions)"),
        (
            ("v2.DRAPlugin",),
            (
                'none of services supported by the plugin (["v2.DRAPlugin"]) are supported by the kubelet '
                '(["v1.DRAPlugin" "v1beta1.DRAPlugin"])'
            ),
        ),
    ],
)
async def test_a_driver_without_a_known_version_is_told_so(versions: tuple[str, ...], text: str) -> None:
    async with (
        kubelet_of(Claims()) as kubelet,
        RecordingDriver(DRIVER, kubelet.root, versions=versions) as driver,
    ):
        await kubelet.until(lambda: kubelet.events.of(PluginNotified), "the driver is notified")
        told = f"invalid supported gRPC versions of DRA driver plugin {DRIVER} at endpoint {driver.endpoint}: {text}"
        assert driver.notified == [(False, f"RegisterPlugin error -- plugin validation failed with err: {told}")]
        assert kubelet.registered() == {}


async def test_a_shared_claim_is_prepared_once_and_unprepared_after_the_last_pod() -> None:
    claims = Claims()
    async with kubelet_of(claims) as kubelet, RecordingDriver(DRIVER, kubelet.root) as driver:
        await kubelet.until_registered(DRIVER)
        first, second = pod("a"), pod("a")
        claims.allocate("a", first, second)
        assert await kubelet.start_pod(first) == await kubelet.start_pod(second)
        await kubelet.stop_pod(first)
        assert driver.methods() == ["NodePrepareResources a"]
        await kubelet.stop_pod(second)
        assert driver.methods() == ["NodePrepareResources a", "NodeUnprepareResources a"]


async def test_claims_of_a_pod_go_to_each_driver_in_one_call() -> None:
    claims = Claims()
    async with (
        kubelet_of(claims) as kubelet,
        RecordingDriver(DRIVER, kubelet.root) as one,
        RecordingDriver("nic.example.com", kubelet.root) as other,
    ):
        await kubelet.until_registered(DRIVER)
        await kubelet.until_registered("nic.example.com")
        user = pod("a", "b", "c", containers=[DraContainer("x", ["a"]), DraContainer("y", [("b", "r0"), ("c", "r9")])])
        claims.allocate("a", user)
        claims.allocate("b", user, drivers=(DRIVER, "nic.example.com"))
        claims.allocate("c", user)
        given = await kubelet.start_pod(user)
        assert one.methods() == ["NodePrepareResources a,b,c"]
        assert other.methods() == ["NodePrepareResources b"]
        assert given["x"] == (f"{DRIVER}/device=a",)
        assert sorted(given["y"]) == [f"{DRIVER}/device=b", "nic.example.com/device=b"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"skipped": {"a"}}, "NodePrepareResources skipped 1 ResourceClaims"),
        ({"invents": True}, "NodePrepareResources returned result for unknown claim UID invented"),
        (
            {"errors": {"NodePrepareResources a": "it burns"}},
            "NodePrepareResources failed for ResourceClaim a: it burns",
        ),
        (
            {"refuses": (grpc.StatusCode.INTERNAL, "it burns")},
            "NodePrepareResources: rpc error: code = Internal desc = it burns",
        ),
    ],
)
async def test_what_a_driver_answers_wrongly_keeps_the_pod_from_starting(change: dict[str, Any], text: str) -> None:
    claims = Claims()
    async with kubelet_of(claims) as kubelet, RecordingDriver(DRIVER, kubelet.root) as driver:
        await kubelet.until_registered(DRIVER)
        user = pod("a")
        claims.allocate("a", user)
        for name, value in change.items():
            setattr(driver, name, value)
        with pytest.raises(PodStartError) as failed:
            await kubelet.start_pod(user)
        assert str(failed.value) == f"Failed to prepare dynamic resources: prepare dynamic resources: {text}"
        driver.skipped, driver.invents, driver.errors, driver.refuses = set(), False, {}, None
        assert await kubelet.start_pod(user) == {"main": (f"{DRIVER}/device=a",)}
        # It is unprepared also where Prepare never succeeded; that is the same call.
        await kubelet.stop_pod(user)
        assert driver.methods()[-1] == "NodeUnprepareResources a"


async def test_a_call_that_hangs_is_given_up_at_its_deadline() -> None:
    claims = Claims()
    timings = DraTimings(call=0.2, watcher=0.02)
    async with kubelet_of(claims, timings=timings) as kubelet, RecordingDriver(DRIVER, kubelet.root) as driver:
        await kubelet.until_registered(DRIVER)
        user = pod("a")
        claims.allocate("a", user)
        driver.hangs = True
        with pytest.raises(PodStartError, match="code = DeadlineExceeded desc = context deadline exceeded"):
            await kubelet.start_pod(user)
        with pytest.raises(PodStopError, match="NodeUnprepareResources: rpc error: code = DeadlineExceeded"):
            await kubelet.stop_pod(user)


async def test_what_the_kubelet_refuses_without_asking_the_driver() -> None:
    claims = Claims()
    async with kubelet_of(claims) as kubelet:
        user, stranger = pod("a"), pod("a")

        async def refusal(of: DraPod) -> str:
            with pytest.raises(PodStartError) as failed:
                await kubelet.start_pod(of)
            return str(failed.value).removeprefix("Failed to prepare dynamic resources: prepare dynamic resources: ")

        assert await refusal(user) == 'fetch ResourceClaim a: resourceclaims.resource.k8s.io "a" not found'
        claims.allocate("a", user)
        assert (
            await refusal(stranger)
            == f"pod {stranger.name} ({stranger.uid}) is not allowed to use ResourceClaim a (uid-a)"
        )
        assert await refusal(user) == f"DRA driver {DRIVER} is not registered"
        assert kubelet.claim("a") is None, "such a pod can be deleted without the driver"
        await kubelet.stop_pod(user)
        owned = pod("a", templates=["a"])
        claims.allocate("a", owned)
        assert "was not created for Pod default/" in await refusal(owned)
        del claims.claims["a"]["status"]["allocation"]
        assert await refusal(pod("a", uid=owned.uid)) == "ResourceClaim a: not allocated"


@pytest.mark.parametrize(("profile", "ids"), [("k136", ["a", "a-new"]), ("k137", ["a-new"])])
async def test_after_a_restart_prepare_comes_again_and_its_answer_is_appended_or_replaces(
    profile: str, ids: list[str]
) -> None:
    claims = Claims()
    async with kubelet_of(claims, profile) as kubelet, RecordingDriver(DRIVER, kubelet.root) as driver:
        await kubelet.until_registered(DRIVER)
        user = pod("a")
        claims.allocate("a", user)
        await kubelet.start_pod(user)
        await kubelet.start_pod(user)
        assert driver.methods() == ["NodePrepareResources a"], "it is prepared in memory"
        await kubelet.restart()
        await kubelet.until_registered(DRIVER)
        assert claims.wiped == ["spec.nodeName=node0"] * 2
        driver.suffix = "-new"
        given = await kubelet.start_pod(user)
        assert given == {"main": tuple(f"{DRIVER}/device={each}" for each in ids)}
        assert driver.methods() == ["NodePrepareResources a"] * 2


async def test_a_pod_that_vanished_while_the_kubelet_was_down_is_unprepared() -> None:
    claims = Claims()
    async with kubelet_of(claims) as kubelet, RecordingDriver(DRIVER, kubelet.root) as driver:
        await kubelet.until_registered(DRIVER)
        user = pod("a")
        claims.allocate("a", user)
        await kubelet.start_pod(user)
        await kubelet.crash()
        kubelet.delete_pod(user)
        await kubelet.start()
        await kubelet.until_registered(DRIVER)
        await kubelet.reconcile()
        assert driver.methods() == ["NodePrepareResources a", "NodeUnprepareResources a"]


async def test_without_its_checkpoint_the_kubelet_never_unprepares() -> None:
    claims = Claims()
    async with kubelet_of(claims) as kubelet, RecordingDriver(DRIVER, kubelet.root) as driver:
        await kubelet.until_registered(DRIVER)
        user = pod("a")
        claims.allocate("a", user)
        await kubelet.start_pod(user)
        await kubelet.crash()
        kubelet.faults.lose_checkpoint()
        await kubelet.start()
        await kubelet.until_registered(DRIVER)
        await kubelet.stop_pod(user)
        assert driver.methods() == ["NodePrepareResources a"]


@pytest.mark.parametrize("profile", ["k136", "k137"])
async def test_a_claim_that_is_being_unprepared_takes_no_new_pod_from_137_on(profile: str) -> None:
    claims = Claims()
    async with kubelet_of(claims, profile) as kubelet, RecordingDriver(DRIVER, kubelet.root) as driver:
        await kubelet.until_registered(DRIVER)
        first, second = pod("a"), pod("a")
        claims.allocate("a", first, second)
        await kubelet.start_pod(first)
        driver.errors = {"NodeUnprepareResources a": "busy"}
        with pytest.raises(PodStopError, match="NodeUnprepareResources failed for ResourceClaim a: busy"):
            await kubelet.stop_pod(first)
        if profile == "k137":
            with pytest.raises(PodStartError, match="ResourceClaim a is being unprepared"):
                await kubelet.start_pod(second)
        else:
            await kubelet.start_pod(second)


def with_skips(claims: Claims, name: str, pod: DraPod, *lists: list[str]) -> None:
    """Have a claim with one device for each of these lists of calls to be left out."""
    claims.allocate(name, pod)
    results = [objects.result(DRIVER, f"d{index}", skipNodeOperations=each) for index, each in enumerate(lists)]
    claims.claims[name]["status"]["allocation"]["devices"]["results"] = results


def skipping() -> DraProfile:
    return attrs.evolve(DRA_PROFILES["k137"], gates=DRA_PROFILES["k137"].gates | {SKIPPING})


@pytest.mark.parametrize(
    ("lists", "called"),
    [
        ([["*"]], []),
        ([["NodePrepareResources", "NodeUnprepareResources"], ["*"]], []),
        ([["NodeUnprepareResources"], ["*"]], ["NodePrepareResources c"]),
        ([["NodeUnprepareResources"]], ["NodePrepareResources c"]),
        ([["*"], []], ["NodePrepareResources c", "NodeUnprepareResources c"]),
    ],
)
async def test_a_call_is_left_out_if_all_devices_of_the_driver_say_so(
    lists: list[list[str]], called: list[str]
) -> None:
    claims, pod = Claims(), DraPod(claims={"c": "c"})
    with_skips(claims, "c", pod, *lists)
    async with kubelet_of(claims, skipping()) as kubelet, RecordingDriver(DRIVER, kubelet.root) as driver:
        await kubelet.until_registered(DRIVER)
        await kubelet.start_pod(pod)
        await kubelet.restart()  # what is left out is in the checkpoint
        await kubelet.until_registered(DRIVER)
        await kubelet.stop_pod(pod)
        assert kubelet.claim("c") is None
        assert driver.methods() == called


async def test_what_is_left_out_needs_no_driver() -> None:
    claims, pod = Claims(), DraPod(claims={"c": "c"})
    with_skips(claims, "c", pod, ["*"])
    async with kubelet_of(claims, skipping()) as kubelet:
        assert await kubelet.start_pod(pod) == {"main": ()}
        await kubelet.stop_pod(pod)


async def test_with_its_gate_off_the_kubelet_refuses_what_is_to_be_left_out() -> None:
    claims, pod = Claims(), DraPod(claims={"c": "c"})
    with_skips(claims, "c", pod, ["*"])
    async with kubelet_of(claims) as kubelet:
        text = "ResourceClaim c: DRAOptionalNodeOperations feature gate is disabled on kubelet"
        with pytest.raises(PodStartError, match=text):
            await kubelet.start_pod(pod)


async def test_an_older_claim_of_the_same_name_is_in_the_way() -> None:
    claims = Claims()
    async with kubelet_of(claims) as kubelet, RecordingDriver(DRIVER, kubelet.root):
        await kubelet.until_registered(DRIVER)
        first, second = pod("a"), pod("a")
        claims.allocate("a", first)
        await kubelet.start_pod(first)
        claims.allocate("a", second, uid="another")
        with pytest.raises(
            PodStartError, match="old ResourceClaim with same name a and different UID uid-a still exists"
        ):
            await kubelet.start_pod(second)


async def test_slices_are_wiped_a_while_after_the_last_connection_and_not_if_it_comes_back() -> None:
    claims = Claims()
    async with kubelet_of(claims) as kubelet:
        driver = RecordingDriver(DRIVER, kubelet.root)
        await driver.start()
        await kubelet.until_registered(DRIVER)
        kubelet.faults.drop_connections(DRIVER)
        await kubelet.until_registered(DRIVER)
        claims.fails = 1
        await driver.stop()
        await kubelet.until(lambda: len(claims.wiped) == 2, "the driver's slices are wiped")
        assert claims.wiped == ["spec.nodeName=node0", f"spec.driver={DRIVER},spec.nodeName=node0"]
        wiped = kubelet.events.of(events.SlicesWiped)
        assert [event.error for event in wiped] == [None, "etcd is away", None]
        gone = kubelet.events.of(events.ConnectionChanged)[-1]
        assert not gone.connected or kubelet.events.of(events.DriverGone)
        assert wiped[1].time - kubelet.events.of(events.DriverGone)[0].time >= 0.15


async def test_two_instances_the_newest_is_called_and_the_older_takes_over() -> None:
    claims = Claims()
    async with kubelet_of(claims) as kubelet:
        old, new = (RecordingDriver(DRIVER, kubelet.root, instance=name) for name in ("old", "new"))
        async with old:
            await kubelet.until_registered(DRIVER)
            user, other = pod("a"), pod("b")
            claims.allocate("a", user)
            claims.allocate("b", other)
            async with new:
                await kubelet.until_registered(DRIVER, instances=2)
                await kubelet.start_pod(user)
            await kubelet.until_registered(DRIVER)
            await kubelet.start_pod(other)
            assert (new.methods(), old.methods()) == (["NodePrepareResources a"], ["NodePrepareResources b"])
            assert len(claims.wiped) == 1


def report(*devices: tuple[str, int, int, str]) -> health.NodeWatchResourcesResponse:
    """A report: name, health, timeout, message."""
    message = health.NodeWatchResourcesResponse()
    for name, state, timeout, text in devices:
        device = message.devices.add(health=state, health_check_timeout_seconds=timeout, message=text)
        device.device.pool_name, device.device.device_name = "pool", name
    return message


HEALTH = ("v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth")


@pytest.mark.parametrize(
    ("profile", "versions", "streams"),
    [
        ("k134", (*BOTH, *HEALTH), []),
        ("k136", BOTH, ["v1alpha1"]),
        ("k136", (*BOTH, *HEALTH), ["v1alpha1"]),
        ("k137", BOTH, []),
        ("k137", (*BOTH, *HEALTH), ["v1"]),
        ("k137", (*BOTH, "v1alpha1.DRAResourceHealth"), ["v1alpha1"]),
    ],
)
async def test_which_kubelet_asks_whom_for_health(profile: str, versions: tuple[str, ...], streams: list[str]) -> None:
    claims = Claims()
    async with (
        kubelet_of(claims, profile) as kubelet,
        RecordingDriver(DRIVER, kubelet.root, versions=versions) as driver,
    ):
        driver.reports = [report(("a", 2, 60, "it burns"))]
        await kubelet.until_registered(DRIVER)
        user = pod("a")
        claims.allocate("a", user)
        await kubelet.start_pod(user)
        if streams:
            await kubelet.until(lambda: kubelet.events.of(events.HealthReceived), "a report came")
        expected = ("Unhealthy", "it burns") if streams else ("Unknown", "")
        assert kubelet.health(user) == {"main": {"claim:a": {f"{DRIVER}/device=a": expected}}}
        assert driver.health_streams == streams


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ("k134", {"first": ["claim:d"], "second": ["claim:d/other"]}),
        ("k136", {"first": ["claim:d", "claim:mine"], "second": ["claim:mine/r0"]}),
        ("k137", {"first": ["claim:d", "claim:mine"], "second": ["claim:mine/r0"]}),
    ],
)
async def test_134_tells_of_the_health_of_claims_only_that_the_pod_calls_by_their_name(
    profile: str, told: dict[str, list[str]]
) -> None:
    claims = Claims()
    async with (
        kubelet_of(claims, profile, tells_health=True) as kubelet,
        RecordingDriver(DRIVER, kubelet.root) as driver,
    ):
        await kubelet.until_registered(driver.driver)
        user = DraPod(
            claims={"mine": "c", "d": "d"},
            containers=(
                DraContainer("first", ["mine", "d"]),
                DraContainer("second", [("mine", "r0"), ("d", "other"), ("d", "another")]),
            ),
        )
        for name in ("c", "d"):
            claims.allocate(name, user)
        await kubelet.start_pod(user)
        assert {container: sorted(each) for container, each in kubelet.health(user).items()} == told


@pytest.mark.parametrize(("profile", "again"), [("k136", True), ("k137", False)])
async def test_a_stream_that_is_unimplemented_is_asked_for_again_up_to_136(profile: str, again: bool) -> None:
    async with kubelet_of(Claims(), profile) as kubelet:
        driver = RecordingDriver(DRIVER, kubelet.root, versions=(*BOTH, "v1.DRAResourceHealth"))
        driver.health_code = grpc.StatusCode.UNIMPLEMENTED
        async with driver:
            await kubelet.until(lambda: kubelet.events.of(events.HealthStreamEnded), "the stream ended")
            if again:
                await kubelet.until(lambda: len(driver.health_streams) > 2, "it is opened again and again")
            else:
                await anyio.sleep(0.3)  # three times the pause after which it would be
                assert len(driver.health_streams) == 1


async def test_the_end_of_a_stream_forgets_all_health_of_the_driver() -> None:
    claims = Claims()
    timings = DraTimings(health_retry=60, watcher=0.02)
    async with kubelet_of(claims, timings=timings) as kubelet:
        driver = RecordingDriver(DRIVER, kubelet.root, versions=(*BOTH, "v1.DRAResourceHealth"))
        driver.reports = [report(("a", 1, 0, ""))]
        async with driver:
            await kubelet.until_registered(DRIVER)
            user = pod("a")
            claims.allocate("a", user)
            await kubelet.start_pod(user)
            await kubelet.until(lambda: _of(kubelet, user) == "Healthy", "the device is healthy")
            kubelet.faults.end_health_streams(DRIVER)
            await kubelet.until(lambda: _of(kubelet, user) == "Unknown", "nothing is known of it")


def _of(kubelet: SimulatedDraKubelet, user: DraPod) -> str:
    return kubelet.health(user)["main"]["claim:a"][f"{DRIVER}/device=a"][0]
