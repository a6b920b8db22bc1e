"""The versions and their differences."""

from __future__ import annotations

import pytest

from kdp_testkit.profiles import DEFAULT_PROFILE, PROFILES, profile_named


def test_profiles_are_found_by_name() -> None:
    assert list(PROFILES) == ["k132", "k134", "k136", "k137"]
    assert profile_named("k136") is PROFILES["k136"]
    assert profile_named(PROFILES["k134"]) is PROFILES["k134"]
    assert [profile.name for profile in PROFILES.values() if not profile.proven] == ["k132"]
    assert DEFAULT_PROFILE == "k137"


def test_an_unknown_profile_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="there is no kubelet profile 'k999'; there are k132, k134, k136, k137"):
        profile_named("k999")
