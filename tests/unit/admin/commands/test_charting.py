"""``kdp manifests --format helm``: the files of a chart. Real Helm judges them in tests/node/test_helm.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from kdp.admin.commands.charting import _alternatives
from kdp.admin.manifests.chart_values import FIXED
from kdp.command.app import kdp
from kdp.daemon.settings import SETTINGS

TARGET = '''
import enum
from pathlib import Path
from typing import Literal
import kdp
from kdp.hardware import Host

class Speed(enum.Enum):
    SLOW = "slow"
    FAST = "fast"

class Widgets(kdp.DeviceBackend):
    """Widgets of this node.

    More about them.
    """

    resource = "example.com/widget"

    def __init__(
        self, host: Host, count: int = 1, *, kind: Literal["a", "b", "c"] = "a", speed: Speed = Speed.SLOW,
        names: list[str] | None = None, ratio: float | None = None, raw: bool = False, file: Path | None = None,
        size: kdp.Quantity | None = None,
    ) -> None:
        """Take the options.

        Args:
            host: The node's files.
            count: How many there are,
                and how many there will be.
            kind: Which kind; ``c`` needs the node's processes.
            raw: Whether to open them raw.
        """
        self.kind, self.raw = kind, raw

    def discover(self):
        return kdp.Device.counted("w", 1, edits=kdp.ContainerEdits.of_node("/dev/null"))

    def needs(self):
        return kdp.Needs(host_paths=("/sys",), host_pid=self.kind == "c", capabilities=("SYS_ADMIN",) * self.raw)

class Pace(str, enum.Enum):
    WALK = "walk"
    RUN = "run"

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2

class Logged(kdp.DeviceBackend):
    """Writes down what it does."""

    resource = "example.com/logged"
    renamed_options = {"speed": "pace"}

    def __init__(self, *, logs: Path | None = None, pace: Pace = Pace.WALK, level: Level = Level.LOW) -> None: ...
    def discover(self): return kdp.Device.counted("w", 1, edits=kdp.ContainerEdits.of_node("/dev/null"))
    def needs(self): return kdp.Needs(host_paths=("/sys/class/logged",))

class Needy(kdp.DeviceBackend):
    def __init__(self, count: int, more: int = 1) -> None: ...
    def discover(self): return []
'''


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "widgets.py").write_text(TARGET)
    return f"{tmp_path}/widgets.py:Widgets"


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(kdp, ["manifests", *map(str, arguments), "--format=helm"])


def invoke_plain(*arguments: str | Path) -> list[dict[str, Any]]:
    """Return the objects of the default format."""
    result = CliRunner().invoke(kdp, ["manifests", *map(str, arguments), "--image=i:1"])
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def chart(folder: Path, *arguments: str | Path) -> Path:
    """Return where a chart was written."""
    result = invoke(*arguments, "--image=registry.example.com:5000/widgets:1.2.3", "-o", folder / "chart")
    assert result.exit_code == 0, result.output
    return folder / "chart"


def values(made: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((made / "values.yaml").read_text())
    return found


def schema(made: Path, *path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made / "values.schema.json").read_text())
    for name in path:
        found = found["properties"][name]
    return found


def test_a_chart_has_its_files_and_says_how_it_was_made(target: str, tmp_path: Path) -> None:
    made = chart(tmp_path, target, "--name=kdp-widgets")

    names = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert names >= {
        "Chart.yaml",
        "values.yaml",
        "values.schema.json",
        "templates/NOTES.txt",
        "templates/daemonset.yaml",
    }
    text = (made / "Chart.yaml").read_text()
    assert text.startswith("# Written by: kdp manifests ")
    about = yaml.safe_load(text)
    assert (about["name"], about["version"], about["appVersion"]) == ("kdp-widgets", "1.2.3", "1.2.3")
    assert about["description"] == "Widgets of this node."
    assert values(made)["image"] == {
        "repository": "registry.example.com:5000/widgets",
        "tag": "1.2.3",
        "digest": "",
        "pullPolicy": "",
    }


def test_a_chart_takes_the_committed_dashboard_and_alerts_with_it(target: str, tmp_path: Path) -> None:
    made = chart(tmp_path, target)

    dashboard = json.loads((made / "files/dashboard.json").read_text())
    assert dashboard == json.loads((ROOT / "deploy/grafana/kdp.json").read_text())
    rules = yaml.safe_load((made / "files/rules.yaml").read_text())
    assert rules == yaml.safe_load((ROOT / "deploy/prometheus/kdp.rules.yaml").read_text())
    found = values(made)
    for name in ("podMonitor", "serviceMonitor", "dashboard", "rules"):
        assert found[name]["enabled"] is False
        assert {*schema(made, name)["properties"]} == {*found[name]}
    assert found["dashboard"]["labels"] == {"grafana_dashboard": "1"}


def test_what_was_given_is_a_default_and_the_rest_a_comment(target: str, tmp_path: Path) -> None:
    made = chart(
        tmp_path, target, "--set=count=3", "--set=names=x,y", "--set=speed=fast", "--cdi=beside", "--replicas=4"
    )

    assert values(made)["config"] == {
        "cdi": "beside",
        "replicas": 4,
        "set": {"count": 3, "names": ["x", "y"], "speed": "fast"},
    }
    text = (made / "values.yaml").read_text()
    assert "\n    # How many there are, and how many there will be.\n    count: 3\n" in text
    assert "\n    # Whether to open them raw. Fixed in this chart" in text
    for name, setting in SETTINGS.items():
        offers = "device-plugin" in setting.modes and not setting.of_place and name not in FIXED
        assert (re.search(rf"^  (# )?{setting.key}:", text, re.MULTILINE) is not None) is offers, name


def test_a_driver_of_a_node_asks_which_pods_a_device_plugin_left(target: str, tmp_path: Path) -> None:
    """`--pool` is no value of the chart, so the chart must be written for it. A pool had no device plugin."""
    folders = {
        name: (chart(tmp_path / name, target, "--mode=dra", *options) / "templates/_helpers.tpl").read_text()
        for name, options in {"node": [], "pool": ["--pool=fabric"]}.items()
    }
    for_pods = '{{- if eq (include "kdp.setting" (list . "metrics")) "pods" }}\n- name: pod-resources\n'
    assert for_pods in folders["pool"]
    assert for_pods not in folders["node"]
    assert "\n- name: pod-resources\n" in folders["node"]


def test_a_directory_that_a_parameter_names_took_the_place_of_another_one(target: str, tmp_path: Path) -> None:
    """The chart counted the directories of its own, and left out the first that the backend reads."""
    logs = tmp_path / "logs"
    logs.mkdir()
    made = chart(tmp_path, target.replace(":Widgets", ":Logged"), f"--set=logs={logs}")

    text = (made / "templates/daemonset.yaml").read_text()
    objects = invoke_plain(target.replace(":Widgets", ":Logged"), f"--set=logs={logs}")
    mounts = {each["name"] for each in objects[-1]["spec"]["template"]["spec"]["volumes"]}
    wanted = {name for name in mounts if name.startswith(("node-", "set-"))}
    assert "set-logs" in wanted
    assert set(re.findall(r"name: ((?:node|set)-\S+)", text)) == wanted


def test_an_enum_of_texts_or_numbers_ended_a_chart_in_a_traceback(target: str, tmp_path: Path) -> None:
    made = chart(tmp_path, target.replace(":Widgets", ":Logged"), "--set=pace=run", "--set=level=HIGH")

    assert values(made)["config"]["set"] == {"pace": "run", "level": "HIGH"}


def test_a_chart_takes_values_with_the_old_name_of_an_option(target: str, tmp_path: Path) -> None:
    made = chart(tmp_path, target.replace(":Widgets", ":Logged"))

    assert schema(made, "config", "set", "speed")["enum"] == schema(made, "config", "set", "pace")["enum"]
    assert "speed" not in (made / "values.yaml").read_text()


def test_braces_of_a_target_are_no_template(tmp_path: Path) -> None:
    folder = tmp_path / "{{ x }}"
    folder.mkdir()
    (folder / "widgets.py").write_text(TARGET)
    made = chart(tmp_path, f"{folder}/widgets.py:Widgets", "--name=kdp-widgets")

    assert '{{ "{{" }} x }}/widgets.py:Widgets' in (made / "templates/daemonset.yaml").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--startup-taint=example.com/starting"], "--resource example.com/fuse{{ with"),
        (["--mode=dra"], "--driver-name fuse.example.com\n"),
    ],
)
def test_the_notes_say_what_an_administrator_removes_after_an_uninstall(
    tmp_path: Path, options: list[str], named: str
) -> None:
    notes = (chart(tmp_path, "minimal", *options) / "templates/NOTES.txt").read_text()

    assert f"\n  kdp uninstall --nodes all {named}" in notes


# -- what is committed -------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[4]
CHARTS = sorted(path.parent for path in ROOT.glob("deploy/charts/*/Chart.yaml"))


def files_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.repository
@pytest.mark.parametrize("folder", CHARTS, ids=lambda path: path.name)
def test_a_committed_chart_is_what_its_first_line_writes(folder: Path, tmp_path: Path) -> None:
    """KDP_WRITE_MANIFESTS=1 writes them anew."""
    command = (folder / "Chart.yaml").read_text().splitlines()[0].removeprefix("# Written by: kdp manifests ")
    made = tmp_path / folder.name

    result = CliRunner().invoke(kdp, ["manifests", *shlex.split(command), "-o", str(made)])

    assert result.exit_code == 0, result.output
    if os.environ.get("KDP_WRITE_MANIFESTS"):
        shutil.rmtree(folder)
        shutil.copytree(made, folder)
    assert files_of(folder) == files_of(made)


def test_a_parameter_of_pairs_ended_the_writing_of_a_chart() -> None:
    assert _alternatives(tuple[int, str], (1, "a")) == []
