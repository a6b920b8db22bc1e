from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.strategies import effort, texts
from tests.yaml_texts import TEXTS

from kdp.admin.commands.manifest_files import to_yaml
from kdp.command.yaml_reading import compose, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("-1", -1),
        ("0x1f", 31),
        ("1.5e+3", 1500.0),
        ("true", True),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("|\n  1\n", "1\n"),
        ("1:30", "1:30"),
        ("0403", "0403"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("off", "off"),
        ("<<", "<<"),
        ("{1: a, ~: b}", {"1": "a", "~": "b"}),
    ],
)
def test_a_plain_scalar_means_what_all_readers_agree_on(text: str, value: object) -> None:
    found = parse_yaml(text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &x 1\nb: *x", "an alias repeats another value; write the value out"),
        ("a: 1\nb: 2\na: 3", "it has the key 'a' twice"),
        ("{1: a, '1': b}", "it has the key '1' twice"),
        ("!!python/object/apply:os.system [id]", "makes an object"),
        ("? [a]\n: b", "line 1: a key must be text"),
        ("[" * 100_000, "it is nested too deeply"),
        ("1.5e+999", "too large"),
        ("a\n---\nb", "expected a single document"),
        ("\0", "special characters are not allowed"),
        ("a: b: c", "mapping values are not allowed here"),
    ],
)
def test_what_readers_do_not_understand_alike_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)


def test_a_node_knows_its_place_and_keeps_its_text() -> None:
    node = compose("a: 0403")
    assert isinstance(node, yaml.MappingNode)
    [(key, value)] = node.value
    assert (key.value, value.value, value.start_mark.column) == ("a", "0403", 3)
    assert compose("# nothing") is None
    with pytest.raises(yaml.MarkedYAMLError) as caught:
        compose("a:\n- &x 1\n- *x")
    assert caught.value.problem_mark is not None
    assert caught.value.problem_mark.line == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | texts | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.sampled_from(TEXTS), inner, max_size=3),
    max_leaves=8,
)


@effort(200)
@given(st.dictionaries(texts | st.sampled_from(TEXTS), VALUES, max_size=3))
def test_what_kdp_writes_and_what_json_writes_is_read(value: dict[str, object]) -> None:
    assert parse_yaml(to_yaml([value])) == value
    assert parse_yaml(json.dumps(value)) == value
