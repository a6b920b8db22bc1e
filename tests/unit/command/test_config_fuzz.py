"""Configuration files of anybody: what comes out is settings and parameters, or a `ConfigurationError`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from tests.fuzzing import HOSTILE, as_bytes, damaged, fuzz, replaced
from typing_extensions import override

import kdp
from kdp.command.config import read
from kdp.command.targets import assign
from kdp.daemon.settings import SETTINGS
from kdp.daemon.sources import from_environment, from_keywords, resolve
from kdp.errors import ConfigurationError
from kdp.hardware import Host

Figure = Callable[[str, float, str], None]


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


@attrs.frozen
class Group:
    path: Path
    count: int = 1
    names: tuple[str, ...] = ()


class Everything(kdp.DeviceBackend):
    resource = "example.com/widget"

    def __init__(
        self,
        count: int = 1,
        ratio: float = 0.5,
        on: bool = False,
        name: str | None = None,
        file: Path = Path("/x"),
        color: Color = Color.RED,
        mode: Literal["a", "b"] = "a",
        amount: kdp.Quantity | int = 1,
        version: kdp.Version | None = None,
        names: Sequence[str] = (),
        pair: tuple[int, float] = (1, 2.0),
        unique: frozenset[str] = frozenset(),
        odd: set[Any] = frozenset(),  # type: ignore[assignment]
        groups: list[Group] = [],  # noqa: B006
        table: Mapping[str, Mapping[str, int]] = {},
        anything: Any = None,
        either: int | bool | list[int] | None = None,
    ) -> None:
        self.given = (count, ratio, on, name, file, color, mode, amount, version, names, pair, unique, odd, groups)
        self.more = (table, anything, either)

    @override
    def discover(self) -> list[kdp.Device]:
        return []


GOOD: list[dict[str, Any]] = [
    {
        "poll-interval": 10,
        "health-policy": {"failures": 2, "hold-down": 30, "flaps": None},
        "replicas-for": {"w0": 4, "model=A*": 2},
        "http": "[::1]:8080",
        "state-dir": "/var/lib/kdp",
        "cdi": "beside",
        "log-level": "debug",
        "device-plugin-dir": "/d",
        "policy": "spread",
    },
    {
        "mode": "dra-controller",
        "pool": "fabric",
        "pool-nodes": "example.com/fabric=a",
        "driver-name": "widget.example.com",
        "health-taint": "NoExecute",
        "device-status": "on",
        "poll-interval": "none",
        "kubeconfig": "/k",
    },
    {
        "set": {
            "count": 4,
            "ratio": 0.5,
            "on": "yes",
            "name": None,
            "file": "/dev/x",
            "color": "red",
            "mode": "b",
            "amount": "80Gi",
            "version": "1.2.3",
            "names": ["a", "b"],
            "pair": [1, 2.5],
            "unique": ["a"],
            "odd": [1],
            "groups": [{"path": "/p", "count": 2, "names": ["x"]}],
            "table": {"a": {"b": 1}},
            "anything": {"a": [1]},
            "either": [1, 2],
        }
    },
]
YAML = [
    b"""# a comment
poll-interval: 10
health-policy: failures=2,hold_down=30
set:
  count: 4
  names: [a, b]
  file: |
    /x
""",
    b"http: ':8080'\nreplicas-for:\n  w0: 4\n'set': {\"on\": yes, table: {a: {b: 1}}, ? ratio : 0.5}\n",
]
TOML = [
    b"""poll-interval = 10
set = {count = 0x4, at = 2026-01-01T00:00:00Z}
[health-policy]
failures = 2
[[x]]
a = [1.5, inf]
"""
]


def understand(directory: Path, suffix: str) -> Callable[[bytes], None]:
    """Do with a file what the command does before it makes the backend."""
    path = directory / f"c{suffix}"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        found = read(path)
        try:
            resolve([found.settings])
        finally:
            assign({"t": Everything}, found.parameters, host=Host())

    return run


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml"])
def test_a_configuration_file_is_understood_or_refused(tmp_path: Path, suffix: str, figure: Figure) -> None:
    seeds = {".yaml": YAML, ".json": [as_bytes(each) for each in GOOD], ".toml": TOML}[suffix]
    inputs = damaged(seeds) | (damaged(seeds) if suffix == ".toml" else replaced(GOOD).map(as_bytes))
    tried = fuzz("config", understand(tmp_path, suffix), (ConfigurationError,), inputs, examples=600)
    figure(f"fuzzing: configuration files {suffix}", tried, "inputs")


def test_each_setting_takes_or_refuses_each_hostile_value(figure: Figure) -> None:
    tried = refused = 0
    for name, setting in SETTINGS.items():
        for value in [
            *HOSTILE,
            float("nan"),
            float("inf"),
            b"x",
            object(),
            {"w0": 10**400},
            f"a={'9' * 5000}",
            ":" + "9" * 5000,
        ]:
            tried += 1
            try:
                found = from_keywords({name: value}, function="kdp.run")
                if isinstance(value, str):
                    found |= from_environment({setting.variable: value})
                resolve([found])
            except ConfigurationError:
                refused += 1
    assert refused
    figure("fuzzing: hostile values of settings", tried, "inputs")
