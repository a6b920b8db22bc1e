"""What `.ci/run` runs of the tests of a node: each feature once, end to end. The others are left to `make verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from .nodekit import MINORS

GATE: Final = {
    # The device managers
    "test_plugin.py": "",
    "test_double_holders.py": "",
    "test_release.py": "a_killed_plugin_forgets_nothing a_pods_end_is_told_once who_holds_what",
    "test_differential.py": "both_are_seen_alike",
    "test_conformance_real.py": "an_example_passes[minimal-k137-kubelet-quick]",
    "test_dra_conformance.py": "kdp_passes[k137]",
    "test_dra_managers.py": "the_managers_do_the_same",
    "test_cdi.py": "a_rendered_device_resolves",
    # A whole kubelet
    "test_kubelet.py": "a_pod_opens_the_device[containerd-2] a_vanished_device_refuses_the_next_pod[containerd-2]",
    "test_generic.py": "cdi_names_in_place_of_device_nodes[containerd-2]",
    # A cluster, device plugins
    "test_cluster.py": "scheduled_pods_open_their_devices a_rolling_update_fails_no_pod "
    "the_plugin_is_killed_and_its_pod_deleted",
    "test_manifests.py": "the_smallest_example_as_written a_kustomize_base_as_written",
    "test_images.py": "the_sequence_of_the_readme[generic]",
    "test_told.py": "events_on_the_node_and_on_the_pod_that_holds_a_failed_device",
    "test_outside_doctor.py": "a_plugin_in_order_then_a_pod_that_finds_no_device",
    # A cluster, DRA drivers
    "test_dra.py": "a_pod_runs_with_the_device_of_its_claim a_killed_driver_knows_what_it_gave "
    "an_update_overlaps_and_no_pod_notices",
    "test_dra_cards.py": "a_prioritized_list_takes_what_the_counters_leave shares_of_a_device_come_and_go_apart",
    "test_switch.py": "",
    "test_dra_manifests.py": "pods_open_devices_by_claim_and_by_number",
    "test_slices.py": "what_is_stored_is_what_was_sent",
}
"""Of each file the tests, by name or with their parameters; none named: all."""

OLDER: Final = (
    "a_pod_gets_the_reply a_kubelet_killed_under_the_plugin_and_a_running_pod a_killed_plugin_forgets_nothing"
)
"""What is run on the older minors as well: allocation and restarts."""

SCENARIOS: Final = "registers pods_take_and_leave a_kubelet_restarts a_plugin_is_killed an_odd_reply"
"""The same of the scenarios that are played on the simulated kubelet beside the real ones."""


def is_in_gate(item: pytest.Item) -> bool:
    """Whether `.ci/run` runs this test."""
    names = GATE.get(item.path.name)
    name = item.name.removeprefix("test_")
    test = name.partition("[")[0]
    if names is None or (names and not {name, test} & {*names.split()}):
        return False
    spec = getattr(item, "callspec", None)
    minor = spec.params.get("minor") if spec is not None else None
    return minor in (None, MINORS[-1]) or is_for_older_minors(item)


def is_for_older_minors(item: pytest.Item) -> bool:
    """Whether `.ci/run` runs this test on the older minors, too."""
    test, _, parameters = item.name.removeprefix("test_").partition("[")
    return test in OLDER.split() or (
        test == "both_are_seen_alike" and parameters.removesuffix("]") in SCENARIOS.split()
    )


def lost_names(items: Sequence[pytest.Item]) -> list[str]:
    """Return the names of `GATE` and `OLDER` that no test has."""
    found = {name for item in items for name in (item.name, item.name.partition("[")[0])}
    wanted = {name for names in (*GATE.values(), OLDER) for name in names.split()}
    wanted |= {f"both_are_seen_alike[{name}]" for name in SCENARIOS.split()}
    return sorted(name for name in wanted if f"test_{name}" not in found)
