"""Each mutant changes the module as it is now. The tests that kill them are slow, so `.ci/run` leaves them out."""

from __future__ import annotations

import pytest

from .deviceplugin import test_inventory_properties, test_session_properties
from .deviceplugin.tracking import test_allocations_properties, test_scrub_properties
from .dra.publishing import test_planner_properties
from .mutants import Mutant
from .supervision import test_health_properties, test_holdings_properties

MUTANTS: list[tuple[str, Mutant]] = [
    *(("kdp.deviceplugin.inventory", each) for each in test_inventory_properties.MUTANTS),
    *(("kdp.deviceplugin.session", each) for each in test_session_properties.MUTANTS),
    *(("kdp.deviceplugin.tracking.allocations", each) for each in test_allocations_properties.MUTANTS),
    *(("kdp.deviceplugin.tracking.allocations", each) for each in test_scrub_properties.MUTANTS),
    *(("kdp.dra.publishing.pacing", each) for each in test_planner_properties.MUTANTS_OF_PACING),
    *(("kdp.dra.publishing.planner", each) for each in test_planner_properties.MUTANTS),
    *(("kdp.supervision.health", each) for each in test_health_properties.MUTANTS),
    *(("kdp.supervision.holdings", each) for each in test_holdings_properties.MUTANTS),
]


@pytest.mark.parametrize(("module", "mutant"), MUTANTS, ids=[each.name for _, each in MUTANTS])
def test_it_changes_its_module(module: str, mutant: Mutant) -> None:
    mutant.load(module)
