"""Which process runs which tests, where several share the tests of a node.

pytest-xdist has marks for this (``--dist loadgroup``), which pytest 9.2 loses without a word: what they change of a
test's id is not taken over. So the scheduler is told by file.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

GROUPS: Final = {
    # One process has all judgements, or each would make them all.
    "test_conformance.py": "conformance",
    "test_conformance_real.py": "conformance",
    # What the real managers did is seen once.
    "test_dra_managers.py": "managers",
    # Two clusters for all processes that share the tests, with about as much to do.
    "test_cluster.py": "cluster",
    "test_manifests.py": "cluster",
    "test_runtime_class.py": "cluster",
    "test_slices.py": "cluster",
    "test_dra_manifests.py": "cluster",
    "test_dra_page.py": "cluster",
    "test_network_pool.py": "cluster",
    "test_publisher.py": "cluster",
    "test_helm.py": "claims",
    # The scenes are played once.
    "test_prometheus.py": "prometheus",
    "test_images.py": "claims",
    "test_dra.py": "claims",
    "test_dra_cards.py": "claims",
    "test_dra_differential.py": "claims",
    "test_dra_examples.py": "claims",
    "test_dra_killed.py": "claims",
}


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives the tests of a group to one process, and each other test to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return GROUPS.get(nodeid.partition("::")[0].rpartition("/")[2], nodeid)
