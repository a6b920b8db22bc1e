"""Who chose the devices of an allocation."""

from __future__ import annotations

from kdp.deviceplugin.answers import MOST, Choices


def test_an_allocation_that_follows_a_preference_says_whose() -> None:
    choices = Choices()
    choices.preferred(["b", "a"], "the policy")
    assert choices.why(["a", "b"], asks=True) == "as the policy preferred"


def test_a_preference_explains_one_allocation() -> None:
    choices = Choices()
    choices.preferred(["a"], "prefer()")
    assert choices.why(["a"], asks=True) == "as prefer() preferred"
    assert choices.why(["a"], asks=True) == "chosen by the kubelet, not by a preference"


def test_preferences_that_no_allocation_follows_are_forgotten() -> None:
    choices = Choices()
    for number in range(MOST + 1):
        choices.preferred([str(number)], "the policy")
    assert choices.why(["0"], asks=True) == "chosen by the kubelet, not by a preference"
    assert choices.why(["1"], asks=True) == "as the policy preferred"
