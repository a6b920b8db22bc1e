"""What ``kdp uninstall`` finds and removes, and what it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest

from kdp.admin.commands.leftovers import FileOwner, Leftover, find, remove
from kdp.daemon.own_socket import path_in
from kdp.daemon.settings import Settings
from kdp.kubelet.sockets import plugin_prefix
from kdp.operations.feature_files import FeatureFile, file_name
from kdp.storage import locks

DRIVER = "widget.example.com"


@attrs.frozen
class Node:
    """A node's directories, short enough for sockets.

    Attributes:
        root: Where all of them are.
        settings: The settings that name them.
    """

    root: Path
    settings: Settings

    @classmethod
    def make(cls, root: Path) -> Node:
        settings = Settings(
            kubelet_root=root / "kubelet",
            device_plugin_dir=root / "kubelet/device-plugins",
            cdi_dir=root / "cdi",
            state_dir=root / "kdp",
            labels_dir=root / "features.d",
        )
        paths = settings.paths
        for folder in (
            paths.device_plugin_dir,
            paths.plugins_registry_dir,
            paths.plugins_dir,
            root / "cdi",
            root / "features.d",
        ):
            folder.mkdir(parents=True)
        (root / "kdp").mkdir()
        return cls(root, settings)

    @property
    def state(self) -> Path:
        return self.root / "kdp"

    def files(self) -> set[str]:
        """Return all files, and directories with a slash behind them."""
        return {f"{path.relative_to(self.root)}{'/' * (path.is_dir())}" for path in self.root.rglob("*")}


@pytest.fixture
def node() -> Iterator[Node]:
    with TemporaryDirectory(prefix="kdp-") as folder:  # short: a socket's whole path has 107 bytes
        yield Node.make(Path(folder))


def dead_socket(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as made:
        path.parent.mkdir(parents=True, exist_ok=True)
        made.bind(os.fspath(path))


@pytest.fixture
def listening() -> Iterator[Callable[[Path], None]]:
    """Make sockets that answer."""
    made: list[socket.socket] = []

    def make(path: Path) -> None:
        each = socket.socket(socket.AF_UNIX)
        made.append(each)
        each.bind(os.fspath(path))
        each.listen()

    yield make
    for each in made:
        each.close()


def leave_everything(node: Node, resource: str = "example.com/widget") -> None:
    """Put there what a plugin and a driver of a resource leave, if they are killed at a bad moment."""
    paths, stem = node.settings.paths, resource.replace("/", "_")
    prefix = plugin_prefix(paths.device_plugin_dir, resource)
    dead_socket(paths.device_plugin_dir / f"{prefix}0a1b2c3d-1.sock")
    dead_socket(paths.device_plugin_dir / ".kdp" / f".{prefix}0a1b2c3d-2.sock")
    dead_socket(paths.plugins_registry_dir / f"{DRIVER}-reg.sock")
    data = paths.plugins_dir / DRIVER
    dead_socket(data / "dra.sock")
    (data / ".kdp").mkdir()
    for name in ("serialize.lock", "claims/.x.json.0a1b.draft", "metadata/uid/request.json"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).touch()
    for name in (f"kdp_kdp.example.com_{stem.split('_')[1]}.json", f"kdp_{DRIVER}_claim_uid.json"):
        (node.root / "cdi" / name).touch()
    for name in (f"{stem}.device-plugin.lock", f"{stem}.dra.lock", f"{stem}.{'0' * 12}.json.set-aside-12"):
        (node.state / name).touch()
    for name in (f"{stem}.store.json", f"{stem}.store.json.set-aside-12", f".{stem}.store.json.{'0' * 12}.draft"):
        (node.state / name).touch()
    (node.state / "config-0a1b2c3d.json").write_text(json.dumps({"targets": ["widgets.py:Widgets"]}))
    dead_socket(path_in(node.state, "device-plugin", [resource]))
    FeatureFile(node.root / "features.d" / file_name(resource)).keep({"example.com/widget.count": "4"})
    (node.root / "features.d" / f".{file_name(resource)}.{'0' * 12}.draft").touch()


OWNER = FileOwner(
    targets=("widgets.py:Widgets",),
    keys=("example.com/widget",),
    resources=("example.com/widget",),
    driver=DRIVER,
)


@pytest.mark.parametrize("owner", [None, OWNER], ids=["all of kdp", "one plugin"])
def test_afterwards_the_node_is_as_before(node: Node, owner: FileOwner | None) -> None:
    before = node.files() - {"kdp/"}
    leave_everything(node)

    found = find(node.settings, owner)

    assert not [each for each in found if each.obstacle]
    assert remove(found) == []
    assert node.files() == before
    assert [each for each in find(node.settings) if not each.is_directory] == []


def test_what_is_not_kdps_stays(node: Node) -> None:
    paths = node.settings.paths
    others = [
        paths.device_plugin_dir / "kubelet_internal_checkpoint",
        paths.device_plugin_dir / "nvidia.sock",
        paths.device_plugin_dir / "kdp-notes.txt",
        paths.plugins_dir / "other.example.com/claims/a.json",
        node.root / "cdi/nvidia.yaml",
        node.root / "cdi/kdp_.txt",
        node.root / "features.d/kdp-notes",
        node.root / "features.d/gpu-features",
        node.state / "notes.txt",
        node.state / "a.json",
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    os.symlink(others[0], paths.device_plugin_dir / "kdp-link.sock")
    before = node.files()

    remove(find(node.settings))

    assert node.files() == before


def test_another_plugins_files_stay_if_one_is_meant(node: Node) -> None:
    leave_everything(node, "example.org/other")
    (node.state / "config-0a1b2c3d.json").write_text(json.dumps({"targets": ["other"]}))
    before = {each for each in node.files() if DRIVER not in each}

    remove(find(node.settings, attrs.evolve(OWNER, driver=None)))

    assert before <= node.files() | {"kubelet/device-plugins/.kdp/"}


def test_a_resource_whose_name_goes_on_lost_its_cdi_file(node: Node) -> None:
    """``example.com/widget.large`` is another one than ``example.com/widget``, and its plugin runs."""
    other = node.root / "cdi/kdp_kdp.example.com_widget_large.json"
    other.parent.mkdir(exist_ok=True)
    other.touch()

    assert other not in [each.path for each in find(node.settings, attrs.evolve(OWNER, driver=None))]
    assert other in [each.path for each in find(node.settings)]


def obstacles(found: list[Leftover]) -> dict[str, str]:
    return {each.path.name: each.obstacle for each in found if each.obstacle is not None}


def test_a_living_plugin_is_found_by_its_sockets(node: Node, listening: Callable[[Path], None]) -> None:
    leave_everything(node)
    living = node.settings.paths.device_plugin_dir / "kdp-example.com_widget-00000000-9.sock"
    commands = node.state / "example.org_other-0a1b2c3d.sock"
    listening(living)
    listening(commands)

    found = obstacles(find(node.settings))

    assert found == dict.fromkeys((living.name, commands.name), "a process answers there: end the plugin")


def test_a_living_plugin_is_found_by_its_locks(node: Node) -> None:
    leave_everything(node)
    allocations = node.state / f"example.com_widget.{'1' * 12}.json"
    held = [node.state / "example.com_widget.dra.lock", allocations]
    descriptors = [locks.open_file(path) for path in held]
    for descriptor in descriptors:
        assert locks.lock(descriptor, is_shared=True)
    try:
        found = obstacles(find(node.settings))
    finally:
        for descriptor in descriptors:
            locks.close(descriptor)

    assert found == {path.name: "a process holds its lock: end the plugin" for path in held}
    # To look takes no lock away.
    assert obstacles(find(node.settings)) == {allocations.name: "pods had devices when the plugin ended: end them"}


def test_allocations_that_nobody_is_told_of_kept_a_node_from_being_cleaned(node: Node) -> None:
    """A plugin compares what pods were given, and without a hook nothing is lost with that."""
    leave_everything(node)
    (node.state / f"example.com_widget.{'1' * 12}.json").write_text('{"releases": false}')
    assert obstacles(find(node.settings)) == {}


def test_a_claim_that_is_prepared_is_a_reason_to_wait(node: Node) -> None:
    leave_everything(node)
    claims = node.settings.paths.plugins_dir / DRIVER / "claims"
    (claims / "6f1b.json").touch()
    (claims / ".6f1b.json.copy").touch()
    (claims / ".6f1b.json.0123.draft").touch()
    why = "a pod may still have the claim 6f1b, or it is not released yet"
    assert obstacles(find(node.settings)) == {"6f1b.json": why, ".6f1b.json.copy": why}


def test_after_an_orderly_stop_a_claim_was_not_seen(node: Node) -> None:
    """The directory of sockets was the mark of kdp, and it ends with the driver's process."""
    data = node.settings.paths.plugins_dir / DRIVER
    (data / "claims").mkdir(parents=True)
    (data / "claims/6f1b.json").touch()
    (data / "serialize.lock").touch()
    assert [each.what for each in find(node.settings)] == ["state directory"]
    (data / ".driver-of-kdp").touch()

    assert [*obstacles(find(node.settings))] == ["6f1b.json"]
    (data / "claims/6f1b.json").unlink()
    remove(find(node.settings))
    assert not data.exists()


@pytest.mark.parametrize("name", ["metadata", "claims", "metadata/uid", ".kdp", ""])
def test_a_link_led_uninstall_to_files_of_the_node(node: Node, name: str) -> None:
    """Whoever may write to a driver's directory could have root remove any directory of the node."""
    leave_everything(node)
    foreign = node.root / "foreign"
    for file in ("request.json", ".kdp/x", "claims/a.json", "metadata/uid/request.json", "uid/request.json"):
        (foreign / file).parent.mkdir(parents=True, exist_ok=True)
        (foreign / file).touch()
    dead_socket(foreign / "dra.sock")
    place = node.settings.paths.plugins_dir / DRIVER / name
    shutil.rmtree(place)
    place.symlink_to(foreign)
    before = {each for each in node.files() if each.startswith("foreign")}

    remove(find(node.settings))

    assert {each for each in node.files() if each.startswith("foreign")} == before


def test_a_directory_that_became_a_link_after_the_search_is_left_alone(node: Node) -> None:
    leave_everything(node)
    found = find(node.settings)
    foreign = node.root / "foreign"
    foreign.mkdir()
    (foreign / "request.json").touch()
    place = node.settings.paths.plugins_dir / DRIVER / "metadata/uid"
    shutil.rmtree(place)
    place.symlink_to(foreign)

    failed = remove(found)

    assert (foreign / "request.json").exists()
    assert [each.parts[-1] for each, _ in failed] == ["request.json"]


@pytest.mark.parametrize("owner", [None, OWNER], ids=["all of kdp", "one driver"])
@pytest.mark.parametrize("is_alive", [False, True])
def test_the_directory_of_a_go_driver_was_taken_for_kdps(
    node: Node, listening: Callable[[Path], None], owner: FileOwner | None, is_alive: bool
) -> None:
    """The Go helper has a lock, claims, metadata, and sockets of the same names."""
    paths = node.settings.paths
    data = paths.plugins_dir / DRIVER
    for name in ("serialize.lock", "claims/6f1b.json", "metadata/6f1b/request.json"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).touch()
    for path in (data / "dra.sock", paths.plugins_registry_dir / f"{DRIVER}-reg.sock"):
        (listening if is_alive else dead_socket)(path)

    assert [each for each in find(node.settings, owner) if DRIVER in str(each.path)] == []


def test_an_empty_directory_that_a_manifest_has_made_goes(node: Node) -> None:
    """The kubelet makes the driver's directory for a device plugin, too, which looks there for claims."""
    for name in (DRIVER, "other.example.com"):
        (node.settings.paths.plugins_dir / name).mkdir()

    remove(find(node.settings))
    assert (node.settings.paths.plugins_dir / DRIVER).exists()
    remove(find(node.settings, OWNER))
    assert [path.name for path in node.settings.paths.plugins_dir.iterdir()] == ["other.example.com"]
