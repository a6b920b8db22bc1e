from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kdp.errors import InvalidNameError
from kdp.model import names

from .. import strategies
from ..strategies import effort

Check = Callable[[str], str]

CHECKS: dict[str, Check] = {
    "resource name": names.check_resource_name,
    "device id": names.check_device_id,
    "CDI kind": names.check_cdi_kind,
    "CDI device name": names.check_cdi_device_name,
    "attribute name": names.check_attribute_name,
    "environment variable": names.check_env_name,
    "host path": partial(names.check_absolute_path, kind="host path"),
    "container path": partial(names.check_absolute_path, kind="container path"),
    "socket path": names.check_socket_path,
}

MESSAGE = re.compile(
    r"(?P<kind>[\w ]+) (?P<value>'.*'|\".*\"): (?P<rule>[^;]+); for example (?P<example>'[^']+')\Z", re.DOTALL
)

GOOD: list[tuple[str, list[str]]] = [
    (
        "resource name",
        ["example.com/widget", "a/b", "x.y-z.io/Widget_1.5", "e" * 244 + "/w", "example.com/" + "w" * 63],
    ),
    ("device id", ["0", "GPU-5e8d/0:1", "w" * 63, "ünï"]),
    ("CDI kind", ["example.com/widget", "V/c", "vendor_1-x.y/class_1-x"]),
    ("CDI device name", ["example.com/widget=0", "example.com/widget=gpu-0.1:2_3"]),
    ("attribute name", ["driverVersion", "_x", "x" * 32, "example.com/x", "d" * 63 + "/x"]),
    ("environment variable", ["A", "a.b-c", "WIDGET_VISIBLE_DEVICES", "Ü"]),
    ("host path", ["/", "/dev/widget0", "/with space", "/..dots../..."]),
    ("socket path", ["/" + "s" * 106, "relative"]),
]

BAD: list[tuple[str, str, str]] = [
    ("resource name", "widget", "must be a domain, one slash and a name"),
    ("resource name", "kubernetes.io/widget", "the domain kubernetes.io is reserved"),
    ("resource name", "requests.example.com/widget", "must not start with 'requests.'"),
    ("resource name", "Example.com/widget", "the domain must be at most 244 lower-case letters"),
    ("resource name", "e" * 245 + "/w", "the domain must be at most 244 lower-case letters"),
    ("resource name", "example.com/widget\n", "the name must be 1 to 63 letters"),
    ("resource name", "example.com/" + "w" * 64, "the name must be 1 to 63 letters"),
    ("resource name", "example.com/-w", "the name must be 1 to 63 letters"),
    ("device id", "w" * 64, "must have 1 to 63 characters, this has 64"),
    ("device id", "a b", "must be printable and without spaces"),
    ("device id", "a\udc80", "must be printable and without spaces"),
    ("CDI kind", "widget", "must be vendor/class"),
    ("CDI kind", "0.com/widget", "must be vendor/class"),
    ("CDI device name", "example.com/widget", "must be vendor/class=device"),
    ("CDI device name", "example.com/widget=", "must be vendor/class=device"),
    ("attribute name", "driver-version", "must be an identifier"),
    ("attribute name", "x" * 33, "must be an identifier"),
    ("environment variable", "", "must be printable and without '=' and spaces"),
    ("environment variable", "A=1", "must be printable and without '=' and spaces"),
    ("host path", "dev/widget0", "must be absolute"),
    ("host path", "", "must be absolute"),
    ("host path", "/dev/../etc", "must not contain '..' or a NUL"),
    ("host path", "/dev/\0", "must not contain '..' or a NUL"),
    ("host path", "/dev/\udcff", "must be UTF-8"),
    ("container path", "x", "must be absolute"),
    ("socket path", "/" + "s" * 107, "must have at most 107 bytes, this has 108"),
    ("socket path", "/" + "ü" * 54, "must have at most 107 bytes, this has 109"),
]


@pytest.mark.parametrize(("kind", "good"), GOOD)
def test_a_good_name_is_returned(kind: str, good: list[str]) -> None:
    assert [CHECKS[kind](name) for name in good] == good


@pytest.mark.parametrize(("kind", "name", "rule"), BAD)
def test_the_message_names_the_value_the_rule_and_a_valid_example(kind: str, name: str, rule: str) -> None:
    with pytest.raises(InvalidNameError) as caught:
        CHECKS[kind](name)
    message = str(caught.value)
    assert message.startswith(f"{kind} {name!r}: {rule}")
    match = MESSAGE.match(message)
    assert match is not None, message
    CHECKS[kind](match["example"].strip("'"))


@pytest.mark.parametrize("check", [names.check_resource_name, names.check_device_id])
def test_what_is_no_text_is_refused(check: Check) -> None:
    with pytest.raises(InvalidNameError, match=r"^(resource name|device id) 7: must be text; for example '"):
        check(7)  # type: ignore[arg-type]


@effort(300)
@given(kind=st.sampled_from(sorted(CHECKS)), name=st.text(max_size=8) | st.text("aZ0-_./=: \0\n", max_size=12))
@example(kind="resource name", name="a/b/")
def test_any_text_is_returned_or_refused_with_a_valid_example(kind: str, name: str) -> None:
    check = CHECKS[kind]
    refused: InvalidNameError | None = None
    try:
        assert check(check(name)) == check(name)
    except InvalidNameError as error:
        refused = error
    if refused is not None:
        match = MESSAGE.match(str(refused))
        assert match is not None, str(refused)
        assert match["value"] == repr(name) or match["kind"] == "CDI kind"
        example = match["example"].strip("'")
        assert CHECKS[match["kind"]](example) == example


@effort(100)
@given(strategies.resource_names)
def test_resource_names_as_the_kubelet_takes_them(name: str) -> None:
    assert names.check_resource_name(name) == name


@effort(100)
@given(strategies.device_ids)
def test_device_ids_are_taken_verbatim(device_id: str) -> None:
    assert names.check_device_id(device_id) == device_id


@effort(150)
@given(parts=st.lists(strategies.path_parts | st.just(".") | st.just(""), max_size=5))
def test_paths_are_normalised_and_stay_absolute(parts: list[str]) -> None:
    path = names.check_absolute_path("/" + "/".join(parts), kind="host path")
    assert path == "/" + "/".join(part for part in parts if part not in (".", ""))


@pytest.mark.parametrize("name", ["GPU", "a-", "x" * 64, 1])
def test_what_is_no_dns_label_is_no_counter_name(name: Any) -> None:
    with pytest.raises(InvalidNameError, match=r"^counter name .*; for example 'gpu-0-memory'$"):
        names.check_counter_name(name)


@pytest.mark.parametrize("name", ["A_b.c-d", f"{'a' * 253}/x"])
def test_label_names_are_those_of_kubernetes(name: str) -> None:
    assert names.check_label_name(name) == name


@pytest.mark.parametrize("name", ["/x", "a/", "a/b/c", f"{'a' * 254}/x"])
def test_other_label_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidNameError, match=r"^label name .*; for example 'example.com/worn'$"):
        names.check_label_name(name)
