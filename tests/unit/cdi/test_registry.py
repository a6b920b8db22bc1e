from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kdp.cdi import CdiRegistry
from kdp.command.yaml_reading import parse_yaml
from kdp.testing import SysfsTree

REMEDY = "write it anew"
WIDGET: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "example.com/widget",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/w0"}]}}],
}
TEXT = json.dumps(WIDGET)
ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    tree = SysfsTree(tmp_path)
    tree.stand_in("/dev/w0", major=240, minor=0)
    return tree


def problem(tree: SysfsTree, name: str = "example.com/widget=0", **files: str) -> str | None:
    for path, text in files.items():
        tree.write(path, text)
    registry = CdiRegistry(tree.host, parse_yaml)
    registry.read()
    return registry.problem(name, REMEDY)


def without(field: str) -> str:
    return json.dumps({name: value for name, value in WIDGET.items() if name != field})


NODES = "devices[0]: containerEdits"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (without("cdiVersion"), "cdiVersion: is missing; it must be one of 0.3.0, 0.4.0,"),
        (TEXT.replace("0.5.0", "9.9.9"), "cdiVersion: must be one of 0.3.0, 0.4.0, "),
        (TEXT.replace('{"deviceNodes": [{"path": "/dev/w0"}]}', "{}"), f"{NODES}: must add something to a container"),
        (json.dumps({**WIDGET, "devices": WIDGET["devices"] * 2}), "devices[1]: name '0': is there twice"),
        (TEXT[:-20], "is not YAML: "),
        (TEXT.replace("deviceNodes", "deviceNode"), f"{NODES}: unknown field 'deviceNode'; known are additionalGids,"),
    ],
)
def test_a_spec_that_runtimes_refuse_is_named_with_the_rule(tree: SysfsTree, text: str, why: str) -> None:
    found = problem(tree, **{"/etc/cdi/others.yaml": "{", "/etc/cdi/w.yaml": text})
    start = "no CDI spec of the node describes example.com/widget=0, and runtimes refuse /etc/cdi/w.yaml: "
    assert str(found).startswith(start + why)
    assert str(found).endswith(f"; {REMEDY}")


def test_only_json_and_yaml_directly_in_the_directories_count(tree: SysfsTree) -> None:
    files = {"/etc/cdi/sub/w.yaml": TEXT, "/etc/cdi/w.yml": TEXT, "/etc/cdi/dir.yaml/w.yaml": TEXT}
    assert problem(tree, **files) == f"no CDI spec of the node describes example.com/widget=0; {REMEDY}"
    assert problem(tree, **{"/etc/cdi/.json": TEXT}) is None


def test_a_later_directory_wins_and_a_conflict_in_one_is_for_good(tree: SysfsTree) -> None:
    gone = TEXT.replace("/dev/w0", "/dev/w9")
    assert problem(tree, **{"/etc/cdi/w.json": gone, "/var/run/cdi/w.json": TEXT}) is None
    assert problem(tree, **{"/etc/cdi/v.yaml": TEXT}) == (
        "/etc/cdi/v.yaml and /etc/cdi/w.json both describe example.com/widget=0, so runtimes use neither; remove one "
        "of the files"
    )


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"path": "/dev/w9"}, "the device node /dev/w9 is gone"),
        ({"path": "/dev/w9", "hostPath": "/dev/w0"}, None),
        ({"path": "/dev/w9", "type": "c", "major": 240}, None),
        ({"path": "/dev/w0", "type": "b"}, "/dev/w0 is a device node of type c, and the spec says b"),
        ({"path": "/dev/link"}, "/dev/link is a link, which runtimes do not follow"),
        ({"path": "/dev/file"}, "/dev/file is no device node"),
        ({"path": "/run/driver/dev/w0"}, None),  # nobody showed us /run/driver/dev
    ],
)
@pytest.mark.parametrize("is_for_all", [True, False])
def test_a_node_that_the_runtime_will_not_find_is_named(
    tree: SysfsTree, node: dict[str, Any], why: str | None, is_for_all: bool
) -> None:
    tree.link("/dev/link", "/dev/w0")
    tree.write("/dev/file", "")
    edits = {"deviceNodes": [node]}
    spec = {**WIDGET, "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]} if is_for_all else edits}]}
    if is_for_all:
        spec["containerEdits"] = edits
    expected = why and f"/etc/cdi/w.json: {why}, so no container with example.com/widget=0 starts; {REMEDY}"
    assert problem(tree, **{"/etc/cdi/w.json": json.dumps(spec)}) == expected


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text", ["[]", "kind: [a]\ndevices: [{name: [a]}]", f"{ALIASES}kind: *i", "&a [*a]", "\xff", "[" * 5000]
)
def test_a_file_that_is_no_spec_keeps_nobody(tree: SysfsTree, text: str) -> None:
    os.makedirs(tree.host.path("/etc/cdi"))
    os.mkfifo(tree.host.path("/etc/cdi/fifo.json"))
    tree.host.path("/etc/cdi/other.yaml").write_text(text, encoding="latin-1")
    assert problem(tree, **{"/etc/cdi/w.json": TEXT}) is None


def test_numbers_are_those_of_the_runtimes_yaml(tree: SysfsTree) -> None:
    """0660 is octal there, and text without quotes that looks like a number is text where a text belongs."""
    text = "cdiVersion: 0.5.0\nkind: example.com/widget\ndevices:\n- name: 0\n  containerEdits:\n    deviceNodes:\n"
    for mode in ("0660", "0o660", "432", "0x1b0", "4_32", "432.5", "08"):
        assert problem(tree, **{"/etc/cdi/w.yaml": f"{text}    - {{path: /dev/w0, fileMode: {mode}}}\n"}) is None
    assert problem(tree, **{"/etc/cdi/w.yaml": f"{text}    - {{path: /dev/w0, fileMode: '0660'}}\n"}) is not None


def test_a_value_may_be_written_once_and_repeated_by_an_alias(tree: SysfsTree) -> None:
    """As PyYAML writes it when two devices have one object."""
    edits: dict[str, Any] = {"deviceNodes": [{"path": "/dev/w0"}]}
    spec = {**WIDGET, "devices": [{"name": name, "containerEdits": edits} for name in ("0", "1")]}
    assert "*id001" in (text := yaml.safe_dump(spec))
    assert problem(tree, **{"/etc/cdi/w.yaml": text}) is None
