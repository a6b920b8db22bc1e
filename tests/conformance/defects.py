"""Which defect of a plugin each check must find: a check that cannot fail does not count."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import attrs
from typing_extensions import override

from kdp_testkit.conformance import CHECKS, CheckResult, run_checks
from kdp_testkit.conformance.checks import Route
from kdp_testkit.conformance.deviceplugin.scene import MakeKubelet, simulated
from kdp_testkit.profiles import DEFAULT_PROFILE

from .broken import BareSubject

__all__ = ["DEFECTS", "SCALE", "Defect", "is_found", "judge_all"]

PATIENCE = 0.1
"""The verdicts' limits are the rules' own here, so that a failure is soon known."""

SCALE = 0.15

WIDTH = 6
"""So many at a time."""

LEISURE = 5.0
"""A second try takes so many times as long."""

LONG = {5: 0.01, 18: 0.03, 74: 0.02, 75: 0.04}
"""The scales of the checks that wait a minute and more."""


@attrs.frozen
class Defect:
    """One defect of `broken.Bare`.

    Attributes:
        check: The check that must find it.
        name: The defect.
        words: What the check says of it.
        route: How the plugin registers.
    """

    check: int
    name: str
    words: str
    route: Route

    @override
    def __str__(self) -> str:
        return f"{self.check}-{self.name}"


_KUBELET: list[tuple[int, str, str]] = [
    (1, "registers_first", "did not accept connections"),
    (1, "endpoint_is_a_path", "not a bare file name"),
    (2, "impatient", "Register was given up"),
    (3, "options_differ", "Register said pre_start_required=True"),
    (4, "partial_list", "ListReceived although nothing had happened"),
    (4, "empty_first", "the first list of a second stream has 0 of"),
    (4, "doubles_ids", "twice"),
    (4, "odd_health", "has the health 'healthy'"),
    (5, "repeats_list", "ListReceived although nothing had happened"),
    (6, "does_not_watch", "did not become Unhealthy"),
    (7, "never_heals", "did not become Healthy again"),
    (8, "no_coalescing", "lists within 1 s"),
    (8, "waits_for_quiet", "no list within"),
    (9, "keeps_the_vanished", "still listed Healthy"),
    (10, "drops_the_held", "although a pod holds it"),
    (11, "registers_for_devices", "registered anew"),
    (12, "shared_queue", "the second stream did not report"),
    (13, "queues_states", "they were queued"),
    (14, "drops_lost_streams", "no new Register came"),
    (15, "trusts_register", "no second Register came"),
    (16, "constant_pause", "they do not grow"),
    (17, "drops_lost_streams", "no Register came after the restart"),
    (17, "renames_after_restart", "these ids were missing"),
    (18, "spins", "of a processor"),
    (19, "compares_inodes", "no Register came after the restart"),
    (20, "gives_up_when_refused", "no Register came after the restart"),
    (21, "exits_when_socket_is_dead", "the plugin ended"),
    (22, "exits_without_kubelet", "the plugin ended"),
    (23, "needs_events", "no Register came after the restart"),
    (24, "ignores_directory", "neither registered"),
    (25, "answers_noise", "ListReceived although nothing had happened"),
    (26, "registers_on_touch", "RegisterReceived"),
    (27, "replaces_its_socket", "StreamEnded although nothing had happened"),
    (28, "exits_when_refused", "the plugin ended"),
    (28, "hammers", "too many for a slow retry"),
    (29, "says_nothing", "did not say why"),
    (30, "gives_up", "no Register came after"),
    (31, "one_name", "again"),
    (32, "options_change", "then"),
    (33, "no_permissions", "permissions ''"),
    (33, "relative_path", "not absolute"),
    (33, "answers_twice", "2 container responses"),
    (34, "depends_on_order", "different answers"),
    (34, "refuses_one_order", "in one order only"),
    (34, "crashes_on_two", "failed: rpc error"),
    (35, "keeps_a_book", "already allocated"),
    (36, "one_at_a_time", "one container at a time"),
    (37, "accepts_unknown", "unknown id 'no-such-device' succeeded"),
    (38, "accepts_unhealthy", "succeeded"),
    (39, "answers_the_first_only", "1 response for two"),
    (40, "crashes_on_empty", "IndexError"),
    (41, "mixes_requests", "was another's"),
    (41, "mixes_slowly", "was another's"),
    (42, "hangs_for_ever", "not answered within"),
    (43, "tells_secrets", "exception's own text"),
    (44, "cannot_be_cancelled", "went on after the cancellation"),
    (45, "cleans_up", "after the plugin ended, these were gone"),
    (46, "lazy_artefacts", "at Register these did not exist"),
    (47, "unresolvable_cdi", "no spec declares"),
    (48, "prefers_all", "for a size of"),
    (49, "ignores_must_include", "became"),
    (50, "fails_the_impossible", "failed: rpc error"),
    (51, "fails_when_not_offered", "Internal"),
    (52, "starts_once", "the second PreStartContainer"),
    (53, "ignores_deadlines", "only the kubelet's own deadline"),
    (54, "sends_anything", "the stream ended"),
    (55, "slow_list", "the first list came"),
    (56, "sends_minus_one", "negative NUMA node"),
    (57, "empty_last_list", "0 healthy devices"),
    (57, "leaves_socket", "behind"),
    (57, "ends_badly", "exit code was 1"),
    (57, "is_slow_to_end", "still running"),
    (58, "breaks_calls", "in flight was answered with"),
    (59, "one_name_for_ever", "again"),
    (60, "cleans_everything", "socket"),
    (61, "drops_lost_streams", "did not register again"),
    (62, "nervous", "sockets vanished"),
    (63, "empty_last_list", "4 healthy devices became 0"),
    (64, "restarts_all", "registered again"),
    (70, "frees_on_errors", "were treated as free"),
    (70, "hammers_pod_resources", "it asked again after"),
    (71, "forgets_what_it_told", "released were"),
    (72, "counts_entries", "released were"),
    (73, "believes_itself", "no new Register came"),
    (74, "leaks_calls", "descriptors became"),
    (75, "leaks_generations", "descriptors became"),
]

_WATCHER: list[tuple[int, str, str]] = [
    (65, "learns_its_version", "is not among plugin supported versions"),
    (66, "deaf_to_refusals", "was not made anew"),
    (66, "says_nothing", "did not log why"),
    (67, "leaves_when_lost", "no device list"),
    (68, "keeps_file", "no new socket file"),
    (69, "strict_authority", "rpc error: code = Unavail"),
]

DEFECTS: Final = (
    *(Defect(check, name, words, "kubelet") for check, name, words in _KUBELET),
    *(Defect(check, name, words, "watcher") for check, name, words in _WATCHER),
)


async def judge_all(
    defects: Sequence[Defect], *, profile: str = DEFAULT_PROFILE, kubelet: MakeKubelet = simulated
) -> dict[Defect, CheckResult]:
    """Let each check judge the plugin that is broken for it, some beside one another.

    What is not found is tried once more with nothing beside it, and then at leisure: on a busy machine a plugin that
    wastes the processor cannot, and one that does nothing wrong yet may be late. At leisure alone one that is a little
    slow is not slow.
    """
    results: dict[Defect, CheckResult] = {}
    alone = {check.id for check in CHECKS if check.alone}
    limiter = anyio.CapacityLimiter(WIDTH)

    async def play(defect: Defect) -> None:
        async with limiter:
            results[defect] = await _judge(defect, profile, kubelet)

    async with anyio.create_task_group() as tasks:
        for defect in defects:
            if defect.check not in alone:
                tasks.start_soon(play, defect)
    for defect in defects:
        if defect not in results:
            await play(defect)
        for leisure in (1.0, LEISURE):
            if not is_found(defect, results[defect]):
                results[defect] = await _judge(defect, profile, kubelet, leisure)
    return results


def is_found(defect: Defect, result: CheckResult) -> bool:
    """Return whether the check says what is wrong."""
    return result.status == "failed" and defect.words in result.saw


async def _judge(defect: Defect, profile: str, kubelet: MakeKubelet, leisure: float = 1.0) -> CheckResult:
    """Let the check judge the plugin that has the defect; with ``leisure`` all takes so many times as long."""
    with tempfile.TemporaryDirectory(prefix="kdp-") as name:
        directory = Path(name)
        report = await run_checks(
            BareSubject(defect.name, directory, defect.route),
            profile=profile,
            only=[defect.check],
            cdi_dirs=[directory],
            patience=PATIENCE * leisure,
            scale=LONG.get(defect.check, SCALE) * leisure,
            meeting=3.0 * leisure,
            kubelet=kubelet,
        )
    [result] = report.results
    return result
