"""kdp's judge of CDI specs beside the reference library: the same verdict on specs of anybody, and on directories."""

from __future__ import annotations

import copy
import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kdp.cdi import CDI_DIRECTORIES, CdiRegistry
from kdp.command.yaml_reading import parse_yaml
from kdp.testing import SysfsTree
from kdp_testkit.patience import PATIENCE

from .nodekit import Missing
from .nodekit.tools import tool

SPECS: Final = 200

EDITS: Final[dict[str, list[Any]]] = {
    "env": ["A=1", "B=", "=C", "D", "", 5, None, "E=ü"],
    "deviceNodes": [
        {"path": "/dev/null"},
        {"path": "/dev/w", "hostPath": "/dev/null", "permissions": "rw", "uid": 1, "gid": 0, "fileMode": 0o660},
        {"path": "/dev/w", "type": "c", "major": 1, "minor": 3, "permissions": "none"},
    ],
    "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"], "type": "bind"}],
    "hooks": [{"hookName": "prestart", "path": "/h", "args": ["h"], "env": ["A=1"], "timeout": 5}],
    "netDevices": [{"hostInterfaceName": "ib0", "name": "net1"}, {"hostInterfaceName": "ib1", "name": "net1"}],
    "intelRdt": [{"closID": "a", "l3CacheSchema": "L3:0=f", "schemata": [], "enableMonitoring": True}],
    "additionalGids": [44, 0],
}
ODD: Final[list[Any]] = [
    *(None, "", 0, -1, 1.5, -0.5, True, 2**31, 2**32, 2**40, 2**63, "5", [], {}, [None], ["x"], {"a": 1}, [{}], [[1]]),
    *(
        "w",
        "0w",
        "w.w",
        "-w",
        "w-",
        "a/b",
        "a/b/c",
        "none",
        "rwx",
        "wr",
        "c",
        "u",
        "p",
        "q",
        "/",
        ".",
        "..",
        "prestart",
    ),
    *("sometime", "yes", "Off", "maybe", "ü", "a/b\n", "x" * 4095, "x" * 4096, "0.3.0", "v1.1.0", "0.2.0", "9.9.9"),
]
KINDS: Final = ("example.com/widget", "example.com/w.w", "e/w", "a/b", "w/w")
NAMES: Final = ("w", "0", "GPU-1", "a:b.c_d", "5", "0w", "w.w", "none", "rwx", "wr", "c", "b", "u", "p", "q")
KEYS: Final = ("deviceNode", "Name", "annotations", "containerEdits", "type", "hostPath", "name", "env", "x")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path of each value inside a document."""
    pairs: Any = value.items() if hasattr(value, "items") else enumerate(value) if hasattr(value, "append") else ()
    for key, held in pairs:
        yield (*path, key)
        yield from _places(held, (*path, key))


def _edits(draw: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in draw.sample([*EDITS], draw.choice([1, 1, 2, 3])):
        found[name] = draw.sample(EDITS[name], 1 if draw.random() < 0.8 else len(EDITS[name]))
    if "intelRdt" in found:
        found["intelRdt"] = found["intelRdt"][0]
    if "env" in found and draw.random() < 0.8:
        found["env"] = ["A=1"]
    return found


def _spec(draw: random.Random) -> dict[str, Any]:
    """Return a spec that is right or nearly so."""
    spec: dict[str, Any] = {
        "cdiVersion": draw.choice(["1.1.0"] * 5 + ["v1.1.0", "0.8.0", "0.7.0", "0.6.0", "0.5.0", "0.4.0", "0.3.0"]),
        "kind": draw.choice(["example.com/widget"] * 3 + ["example.com/w.w", "e/w"]),
        "devices": [
            {"name": name, "containerEdits": _edits(draw)}
            for name in draw.sample(["w", "0", "GPU-1", "a:b.c_d"], draw.choice([1, 1, 2]))
        ],
    }
    if draw.random() < 0.3:
        spec["containerEdits"] = _edits(draw)
    if draw.random() < 0.3:
        draw.choice([spec, *spec["devices"]])["annotations"] = draw.choice([{}, {"a": "b"}, {"a/b/c": 1, "": None}])
    spec = copy.deepcopy(spec)
    for _ in range(draw.choice([0, 0, 1, 1, 2])):
        *above, last = draw.choice([*_places(spec)])
        place: Any = spec
        for key in above:
            place = place[key]
        change = draw.random()
        if change < 0.6:
            place[last] = draw.choice(ODD)
        elif change < 0.75:
            del place[last]
        elif change < 0.9 and hasattr(place, "items"):
            place[draw.choice(KEYS)] = place[last]
        elif hasattr(place, "append"):
            place.append(place[last])
    return spec


def _text(spec: dict[str, Any], draw: random.Random) -> tuple[str, str]:
    """Return the spec as the text of a file, and the file's suffix."""
    if draw.random() < 0.5:
        return json.dumps(spec, indent=draw.choice([None, 2, "\t"])), "json"
    text: str = yaml.safe_dump(spec, default_flow_style=draw.choice([True, False, None]))
    return text, "yaml"


def _library(arguments: list[str]) -> list[list[str]]:
    """Return the devices that the library finds in each argument's directories."""
    try:
        program = tool("cdi-validate")
    except Missing as missing:
        pytest.skip(str(missing))
    done = subprocess.run([program, *arguments], check=True, capture_output=True, timeout=PATIENCE)
    return [sorted(json.loads(line)["devices"]) for line in done.stdout.splitlines()]


def _kdp(tree: SysfsTree, names: list[str]) -> list[str]:
    """Return which of the names kdp finds; what it says of a device node's state is not the library's judgment."""
    registry = CdiRegistry(tree.host, parse_yaml)
    registry.read()
    said = {name: registry.problem(name, "") or "" for name in names}
    return [name for name in names if not said[name].startswith("no CDI spec") and "both describe" not in said[name]]


def test_both_judge_200_generated_specs_alike(tmp_path: Path) -> None:
    draw = random.Random(1)  # noqa: S311 - the same specs each time
    trees: list[SysfsTree] = []
    for number in range(SPECS):
        text, suffix = _text(_spec(draw), draw)
        tree = SysfsTree(tmp_path / str(number))
        tree.write(f"/etc/cdi/w.{suffix}", text)
        trees.append(tree)
    said = _library([str(tree.host.path("/etc/cdi")) for tree in trees])
    asked = sorted({f"{kind}={name}" for kind in KINDS for name in NAMES}.union(*said))
    differ = [
        (tree.host.root.name, devices, ours)
        for tree, devices in zip(trees, said, strict=True)
        if (ours := _kdp(tree, asked)) != devices
    ]
    assert differ == []
    assert SPECS / 4 < sum(map(bool, said)) < SPECS * 3 / 4, "some must be taken, and some refused"


def test_both_look_for_a_host_path_in_the_last_device_only(tmp_path: Path) -> None:
    """The library's loop, in Go 1.19, has one variable for all devices."""
    edits = [{"deviceNodes": [{"path": "/dev/w", "hostPath": "/dev/null"}]}, {"env": ["A=1"]}]
    trees = [SysfsTree(tmp_path / name) for name in ("first", "last")]
    for tree, each in zip(trees, (edits, edits[::-1]), strict=True):
        devices = [{"name": name, "containerEdits": edit} for name, edit in zip("ab", each, strict=True)]
        spec = {"cdiVersion": "0.3.0", "kind": "e/w", "devices": devices}
        tree.write("/etc/cdi/w.json", json.dumps(spec))
    names = ["e/w=a", "e/w=b"]
    assert _library([str(tree.host.path("/etc/cdi")) for tree in trees]) == [names, []]
    assert [_kdp(tree, names) for tree in trees] == [names, []]


FILES: Final = ("a.json", "b.yaml", ".c.json", "d.yml", "e", "sub/f.json", ".json", ".d.json.tmp")


def test_both_know_which_directory_wins(tmp_path: Path) -> None:
    draw = random.Random(2)  # noqa: S311
    good = {"cdiVersion": "0.5.0", "kind": "example.com/widget"}
    trees: list[SysfsTree] = []
    for number in range(50):
        tree = SysfsTree(tmp_path / str(number))
        for directory in CDI_DIRECTORIES:
            tree.host.path(directory).mkdir(parents=True)
            for name in draw.sample(FILES, 2):
                devices = [{"name": each, "containerEdits": {"env": ["A=1"]}} for each in draw.sample("wxyz", 2)]
                tree.write(f"{directory}/{name}", json.dumps({**good, "devices": devices}))
        trees.append(tree)
    said = _library([":".join(str(tree.host.path(each)) for each in CDI_DIRECTORIES) for tree in trees])
    names = [f"example.com/widget={each}" for each in "wxyz"]
    assert [_kdp(tree, names) for tree in trees] == said
    assert len({len(devices) for devices in said}) > 2
