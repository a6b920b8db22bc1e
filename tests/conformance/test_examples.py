"""The examples pass every check, and what does not apply to them is listed with its reason."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import kdp
import kdp.hardware
import kdp_example_generic
import kdp_example_minimal
from kdp.testing.conformance import CHECKS, check_backend
from kdp.testing.conformance.model import Route

PROFILES = ["k134", "k136", "k137"]

MATRIX = os.environ.get("KDP_CONFORMANCE") == "all"
"""All profiles, and the checks that wait long; else the newest profile, quickly."""

HAS_FUSE = Path("/dev/fuse").exists()

Figure = Callable[[str, float, str], None]


def listed(route: Route) -> dict[int, str]:
    """The checks that may be not applicable over a route, with the reasons."""
    table = tomllib.loads(Path(__file__).with_name("not_applicable.toml").read_text())[route]
    found: dict[int, str] = {}
    for ids, reason in table.items():
        first, _, last = ids.partition("-")
        found |= dict.fromkeys(range(int(first), int(last or first) + 1), reason)
    return found


def minimal(_directory: Path) -> Callable[[], kdp.DeviceBackend]:
    return kdp_example_minimal.Fuse


def generic(directory: Path) -> Callable[[], kdp.DeviceBackend]:
    config = directory / "config.yaml"
    config.write_text(
        "resources: [{name: example.com/null, groups: [{count: 3, paths: [{path: /dev/null}, "
        "{path: /dev/zero, mountPath: /dev/nothing}]}]}]"
    )
    return partial(kdp_example_generic.Generic, config, kdp.hardware.Host())


@pytest.mark.parametrize("route", ["kubelet", "watcher"])
@pytest.mark.parametrize("example", [minimal, generic])
@pytest.mark.parametrize("profile", PROFILES if MATRIX else PROFILES[-1:])
async def test_an_example_passes(
    example: Callable[[Path], Callable[[], kdp.DeviceBackend]],
    profile: str,
    route: Route,
    tmp_path: Path,
    figure: Figure,
) -> None:
    if example is minimal and not HAS_FUSE:
        pytest.skip("this kernel has no /dev/fuse, which examples/minimal serves")
    report = await check_backend(
        example(tmp_path), profile=profile, registration=route, quick=True, cdi_dirs=[tmp_path]
    )
    report.raise_if_failed()
    not_applicable = {result.check.id: result.saw for result in report.of("not_applicable")}
    expected = {number: reason for number, reason in listed(route).items() if number not in report.left_out}
    assert not_applicable == expected
    seconds = sum(result.seconds for result in report.results)
    figure(f"conformance of {example.__name__}, {profile}, {route}: all checks one after another", seconds, "s")


@pytest.mark.skipif(not MATRIX, reason="these checks wait for minutes; KDP_CONFORMANCE=all runs them")
@pytest.mark.parametrize("example", [minimal, generic])
async def test_an_example_passes_what_waits_long(
    example: Callable[[Path], Callable[[], kdp.DeviceBackend]], tmp_path: Path
) -> None:
    long = [check.id for check in CHECKS if check.waits]
    report = await check_backend(example(tmp_path), only=long, cdi_dirs=[tmp_path])
    report.raise_if_failed()
    assert report.summary == {"passed": len(long), "failed": 0, "not_applicable": 0}


def test_over_both_routes_nothing_of_the_first_64_is_left_out() -> None:
    both = listed("kubelet").keys() & listed("watcher").keys()
    assert not {number for number in both if number <= 64}


def test_the_list_of_what_does_not_apply_does_not_grow() -> None:
    """Whoever makes a check apply takes it off the list and lowers the number; nobody raises it."""
    assert len(listed("kubelet")) <= 9
    assert len(listed("watcher")) <= 30


def test_the_checks_are_the_75_of_the_contract() -> None:
    assert [check.id for check in CHECKS] == list(range(1, 76))
    assert len({check.name for check in CHECKS}) == 75
    for check in CHECKS:
        assert check.rule.startswith("section "), check
        assert check.cure
        assert check.expected
