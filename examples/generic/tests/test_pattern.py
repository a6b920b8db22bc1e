from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp_example_generic.pattern import Pattern, by_number

if TYPE_CHECKING:
    from examples.generic.tests.conftest import Tree


def _paths(pattern: Pattern, tree: Tree) -> list[str]:
    return [found.path for found in pattern.find(tree.host)]


def test_a_shell_pattern_finds_2_before_10_and_no_hidden_file(tree: Tree) -> None:
    tree.node("/dev/video10", "/dev/video2", "/dev/video0", "/dev/.video3")

    assert _paths(Pattern.shell("/dev/video*"), tree) == ["/dev/video0", "/dev/video2", "/dev/video10"]
    assert _paths(Pattern.shell("/dev/video[0-2]"), tree) == ["/dev/video0", "/dev/video2"]
    assert _paths(Pattern.shell("/dev/video[^2]"), tree) == ["/dev/video0"]
    assert _paths(Pattern.shell("/dev/video?"), tree) == ["/dev/video0", "/dev/video2"]
    assert _paths(Pattern.shell("/dev/*"), tree) == ["/dev/video0", "/dev/video2", "/dev/video10"]


def test_a_link_is_found_under_its_own_name_and_one_to_nowhere_is_not(tree: Tree) -> None:
    tree.node("/dev/ttyUSB0")
    tree.link("/dev/serial/by-id/usb-a", "../../ttyUSB0")
    tree.link("/dev/serial/by-id/usb-absolute", "/dev/ttyUSB0")
    tree.link("/dev/serial/by-id/usb-b", "../../ttyUSB1")
    tree.link("/dev/serial/by-id/usb-loop", "usb-loop")

    found = _paths(Pattern.shell("/dev/serial/by-id/*"), tree)

    assert found == ["/dev/serial/by-id/usb-a", "/dev/serial/by-id/usb-absolute"]


def test_a_link_to_a_directory_is_walked_inside_the_node(tree: Tree) -> None:
    tree.node("/dev/real/x0")
    tree.link("/dev/alias", "/dev/real")

    assert _paths(Pattern.shell("/dev/alias/x*"), tree) == ["/dev/alias/x0"]
    assert _paths(Pattern.shell("/dev/a*/x*"), tree) == ["/dev/alias/x0"]


def test_a_regular_expression_gives_its_captures(tree: Tree) -> None:
    tree.node("/dev/ttyUSB0", "/dev/ttyACM3", "/dev/ttyS0", "/dev/ttyUSB0x")

    usb, acm = sorted(
        Pattern.regular(r"/dev/tty(?P<bus>USB|ACM)(\d+)").find(tree.host), key=lambda found: found.path, reverse=True
    )

    assert (usb.path, usb.captures) == ("/dev/ttyUSB0", {"bus": "USB", "1": "USB", "2": "0"})
    assert (acm.path, acm.keys) == ("/dev/ttyACM3", {"bus": "ACM"})


def test_an_expression_for_a_hidden_name_found_nothing(tree: Tree) -> None:
    tree.node("/dev/.widget1", "/dev/.widget2", "/dev/widget1")

    assert _paths(Pattern.regular(r"/dev/\.widget\d"), tree) == ["/dev/.widget1", "/dev/.widget2"]
    assert _paths(Pattern.regular(r"/dev/[.]widget(\d)"), tree) == ["/dev/.widget1", "/dev/.widget2"]
    assert _paths(Pattern.regular(r"/dev/.?widget\d"), tree) == ["/dev/widget1"]


def test_an_alternative_reaches_no_further_than_its_name(tree: Tree) -> None:
    tree.node("/dev/a1", "/dev/b1", "/b1")

    assert _paths(Pattern.regular(r"/dev/a\d|b\d"), tree) == ["/dev/a1", "/dev/b1"]


@pytest.mark.parametrize("text", ["/dev/(a/b)", "/(?P<n>a)/(?P<n>b)"])
def test_what_is_no_regular_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a regular expression"):
        Pattern.regular(text)


def test_the_directories_to_watch_are_where_a_new_name_matters(tree: Tree) -> None:
    pattern = Pattern.shell("/dev/dri/renderD*")

    def names() -> dict[str, set[str]]:
        return {path: {part.text for part in parts} for path, parts in pattern.directories(tree.host).items()}

    assert names() == {"/": {"dev"}}
    tree.directory("/dev")
    assert names() == {"/": {"dev"}, "/dev": {"dri"}}
    tree.directory("/dev/dri")
    assert names() == {"/": {"dev"}, "/dev": {"dri"}, "/dev/dri": {"renderD*"}}


def test_a_directory_is_watched_where_its_link_leads(tree: Tree) -> None:
    tree.directory("/dev/real")
    tree.link("/dev/alias", "real")

    assert Pattern.shell("/dev/alias/x*").directories(tree.host).keys() == {"/", "/dev", "/dev/real"}


NAMES = st.text(st.sampled_from("ab.0-_"), min_size=1, max_size=6)
PIECES = st.lists(st.sampled_from(["*", "?", "[ab]", "[!0]", "a", "b", "0", "."]), min_size=1, max_size=5)


@given(PIECES, NAMES)
def test_a_part_means_what_the_shell_means(pieces: list[str], name: str) -> None:
    text = "".join(pieces)
    if "**" in text or text in (".", ".."):
        return
    (part,) = Pattern.shell(f"/{text}").parts

    hidden = name.startswith(".") and not text.startswith(".")
    assert part.matches(name) == (fnmatch.fnmatchcase(name, text) and not hidden)


@given(st.lists(st.text(st.sampled_from("ab019/"), max_size=8)))
def test_the_order_is_total_and_by_number(names: list[str]) -> None:
    assert sorted(names, key=by_number) == sorted(sorted(names), key=by_number)
    for name in names:
        number = re.fullmatch(r"([ab]*)(\d+)", name)
        if number:
            assert by_number(f"{number[1]}{int(number[2])}") < by_number(f"{number[1]}{int(number[2]) + 1}")
