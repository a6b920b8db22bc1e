"""Each string that is written comes back as that string, whatever reads it."""

from __future__ import annotations

import re
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.strategies import effort, texts
from tests.yaml_texts import TEXTS

from kdp.admin.commands.manifest_files import to_yaml

# What YAML 1.1 (yaml.org/type), the core schema of YAML 1.2 and go-yaml, which kubectl has, take for something else
# than a string.
OTHERS = re.compile(
    r"""
    ~ | null | true | false | y | yes | n | no | on | off | << | = |                 # null, bool, merge, value
    [-+]? (0b[01_]+ | 0o[0-7_]+ | 0x[0-9a-f_]+ | [0-9][0-9_]*) |                     # int
    [-+]? [0-9][0-9_]* (:[0-5]?[0-9])+ (\.[0-9_]*)? |                                # sexagesimal
    [-+]? ([0-9][0-9_]*\.?[0-9_]* | \.[0-9_]+) (e[-+]?[0-9]+)? | [-+]? \.inf | \.nan | # float
    [0-9]{4}-[0-9]{1,2}-[0-9]{1,2} ([t\ ].*)? |                                      # timestamp
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def check(text: str) -> None:
    written = to_yaml([{text: text, "list": [text]}])

    assert yaml.safe_load(written) == {text: text, "list": [text]}
    plain = [token.value for token in yaml.scan(written) if isinstance(token, yaml.ScalarToken) and token.plain]
    assert not [each for each in plain if OTHERS.fullmatch(each)]


def test_what_some_reader_takes_for_another_type_is_quoted() -> None:
    for text in TEXTS:
        check(text)


@effort(300)
@given(texts | st.from_regex(OTHERS, fullmatch=True) | st.text("yYnNoOtTfF0123456789xXbBeE_+-.:~=<", max_size=6))
@example("x " * 1000)
def test_every_string_comes_back_from_each_kind_of_yaml(text: str) -> None:
    check(text)


def test_what_people_read_is_not_quoted() -> None:
    document: dict[str, Any] = {
        "app.kubernetes.io/name": "kdp-widgets",
        "image": "registry.example.com:5000/widgets@sha256:0",
        "path": "/var/lib/kubelet",
        "args": ["run", "--set=count=1", "--http=:8080"],
        "requests": {"cpu": "10m", "memory": "48Mi"},
        "maxUnavailable": "10%",
        "replicas": 1,
        "readOnly": True,
    }

    assert not re.search("['\"]", to_yaml([document]))
