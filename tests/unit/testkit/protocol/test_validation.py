"""The kubelet's checks and sentences, to the letter."""

from __future__ import annotations

import pytest

from kdp_testkit.protocol import validation


@pytest.mark.parametrize(
    "name",
    [
        "example.com/Widget_1.x-Y",
        f"{'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 52}/{'n' * 63}",
    ],
)
def test_good_names(name: str) -> None:
    assert validation.is_extended_resource(name)
    assert validation.resource_name_error(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "example.com/a/b",
        "x.kubernetes.io/widget",
        "requests.example.com/widget",
        f"{'a' * 245}/widget",
        "example.com/widget\n",
    ],
)
def test_bad_names(name: str) -> None:
    assert not validation.is_extended_resource(name)
    assert validation.resource_name_error(name) is not None


def test_the_sentences() -> None:
    assert validation.version_error("v1beta1") is None
    assert (
        validation.version_error("v1")
        == 'requested API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]'
    )
    assert validation.resource_name_error("w") == 'the ResourceName "w" is invalid'
    assert validation.validation_error("a/b", ["v0", "v1beta1"]) is None
    assert (
        validation.validation_error("a/b", []) == "manager version, v1beta1, is not among plugin supported versions []"
    )
    assert (
        validation.validation_error("w", ["v1beta1"])
        == 'invalid name of device plugin socket: the ResourceName "w" is invalid'
    )


@pytest.mark.parametrize(
    ("code", "spelled"),
    [
        ("DEADLINE_EXCEEDED", "DeadlineExceeded"),
        ("CANCELLED", "Canceled"),
    ],
)
def test_codes_are_spelled_as_the_kubelet_spells_them(code: str, spelled: str) -> None:
    assert validation.rpc_error(code, "why") == f"rpc error: code = {spelled} desc = why"
