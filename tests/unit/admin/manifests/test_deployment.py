"""What a plugin's process is given, and what it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdp.admin.manifests.cluster import Cluster
from kdp.admin.manifests.deployment import Deployment, deployment_of, own_port
from kdp.daemon.parsers import Address
from kdp.daemon.settings import Settings
from kdp.errors import InvalidValueError
from kdp.model.backend import Needs

from ...strategies import effort

DEVICE_MODEL = {f"/sys/{name}" for name in ("bus", "class", "dev", "devices", "module")}
OWN = {"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources", "/var/lib/kdp"}


def deployment(needs: Needs | None = None, **changes: Any) -> Deployment:
    given: dict[str, Any] = {
        "name": "kdp-widgets",
        "target": "widgets",
        "settings": Settings(),
        "options": {},
        "needs": needs or Needs(),
        "takes_host": True,
        "in_container": True,
    }
    given |= changes
    own = {name: given.pop(name) for name in [*given] if name in attrs.fields_dict(Deployment) and name != "options"}
    return deployment_of(Deployment(**own), **given)


def paths(made: Deployment) -> set[str]:
    return {folder.path for folder in made.folders}


def test_kdp_itself_needs_three_directories_and_writes_to_two() -> None:
    made = deployment()

    assert paths(made) == OWN
    assert {folder.path for folder in made.folders if folder.writable} == OWN - {"/var/lib/kubelet/pod-resources"}
    assert (made.needs.capabilities, made.needs.opened_nodes, made.needs.host_network) == ((), (), False)


NOTHING: set[str] = set()


def test_a_plugin_sees_the_claims_of_the_driver_of_its_devices_and_writes_none() -> None:
    [folder] = [each for each in deployment(driver="widget.example.com").folders if each.name == "driver"]
    assert (folder.path, folder.made, folder.writable) == ("/var/lib/kubelet/plugins/widget.example.com", True, False)


@pytest.mark.parametrize(
    ("replaces", "more"),
    [
        ("example.com/Old_Card", {"/var/lib/kubelet/plugins/old-card.example.com"}),
        ("example.com/9-cards", NOTHING),  # no driver can have that name
        (None, NOTHING),
    ],
)
def test_a_driver_sees_the_claims_of_the_driver_that_it_replaces(replaces: str | None, more: set[str]) -> None:
    named = Cluster(driver="widget.example.com")
    without = paths(deployment(settings=Settings(mode="dra"), cluster=named))
    assert paths(deployment(settings=Settings(mode="dra", replaces=replaces), cluster=named)) == without | more


@pytest.mark.parametrize(
    ("settings", "more", "less"),
    [
        (Settings(cdi="only", cdi_dir=Path("/etc/cdi")), {"/etc/cdi"}, NOTHING),
        (Settings(labels="nfd"), {"/etc/kubernetes/node-feature-discovery/features.d"}, NOTHING),
        (Settings(state_dir=None), NOTHING, {"/var/lib/kdp"}),
        (
            Settings(registration="watcher"),
            {"/var/lib/kubelet/plugins_registry"},
            {"/var/lib/kubelet/device-plugins"},
        ),
        (
            Settings(kubelet_root=Path("/data/kubelet")),
            {"/data/kubelet/pod-resources"},
            {"/var/lib/kubelet/pod-resources"},
        ),
    ],
)
def test_the_settings_decide_what_kdp_needs(settings: Settings, more: set[str], less: set[str]) -> None:
    assert paths(deployment(settings=settings)) == (OWN | more) - less


@pytest.mark.parametrize(
    ("settings", "is_needed"),
    [
        (Settings(mode="dra"), True),
        (Settings(mode="dra", pool="fabric"), False),
        (Settings(mode="dra", pool="fabric", metrics="pods"), True),
    ],
)
def test_only_a_driver_of_a_nodes_own_devices_may_follow_a_device_plugin(settings: Settings, is_needed: bool) -> None:
    made = deployment(settings=settings, cluster=Cluster(driver="widget.example.com", pool=settings.pool))

    assert ("/var/lib/kubelet/pod-resources" in paths(made)) == is_needed
    assert not [each for each in made.folders if each.name == "pod-resources" and each.writable]


def test_a_backend_without_state_had_no_place_for_the_lock() -> None:
    """A DRA driver of the same devices began beside the plugin, because each container had a lock of its own."""
    made = deployment()

    assert paths(made) == OWN
    (state,) = [folder for folder in made.folders if folder.path == "/var/lib/kdp"]
    assert state.writable
    assert state.why.endswith(" and the lock that keeps a DRA driver of the same devices away")


def test_nodes_are_looked_at_in_the_nodes_own_dev_and_never_mounted_alone() -> None:
    made = deployment(nodes=["/dev/dri/renderD128", "/dev/kfd", "/run/widgets/w0"])

    seen = {folder.path: folder.seen_at for folder in made.folders if folder.path not in OWN}
    assert seen == {"/dev": "/host/dev", "/run/widgets": "/host/run/widgets"}
    assert not any(folder.writable for folder in made.folders if folder.path in seen)
    assert "--host-root=/host" in made.options


def test_root_without_rights_changed_a_memory_limit_in_the_nodes_sys() -> None:
    """The control groups are mounted below /sys, and a read-only mount of that leaves them writable."""
    made = deployment(Needs(host_paths=["/sys", "/sys/kernel/iommu_groups"]))

    assert paths(made) - OWN == {*DEVICE_MODEL, "/sys/kernel/iommu_groups"}
    assert paths(deployment(Needs(host_paths=["/sys/class/widget"]))) - OWN == DEVICE_MODEL


def test_a_plugin_in_the_nodes_network_is_probed_there_and_by_nobody_else() -> None:
    assert deployment().http == Address("", 8080)
    made = deployment(Needs(host_network=True))
    assert made.http == Address("127.0.0.1", own_port(made.name))
    assert f"--http={made.http}" in made.options
    assert deployment(Needs(host_network=True), settings=Settings(http=Address("", 9))).http == Address("", 9)


def test_metrics_in_the_nodes_network_could_not_be_scraped() -> None:
    """They were served on loopback; and with exec probes at no port at all."""
    measured = Settings(metrics="on")
    made = deployment(Needs(host_network=True), settings=measured)
    assert made.http == Address("", own_port(made.name))
    assert f"--http={made.http}" in made.options
    assert deployment(settings=measured, probing="exec").http == Address("", 8080)
    assert deployment(probing="exec").http is None
    given = Settings(metrics="on", http=Address("127.0.0.1", 9))
    assert deployment(Needs(host_network=True), settings=given).http == Address("127.0.0.1", 9)


def test_each_thing_that_it_is_given_has_a_reason() -> None:
    made = deployment(
        Needs(capabilities=["CAP_NET_ADMIN"], opened_nodes=["/dev/hwrng"], host_network=True, host_pid=True)
    )

    told = dict(made.reasons())
    assert told["capability NET_ADMIN"]
    assert told["open /dev/hwrng"]
    assert told["the node's network"]
    assert told["the node's processes"]
    assert told["/var/lib/kdp (to write)"]
    assert all(told.values())


def test_what_a_runtime_brings_into_a_container_needs_no_directory_there() -> None:
    made = deployment(Needs(opened_nodes=["char-widget*", "/dev/hwrng"], injected_nodes=["char-card*", "/dev/x/card"]))

    assert (made.needs.opened_nodes, made.needs.injected_nodes) == (
        ("char-widget*", "/dev/hwrng"),
        ("char-card*", "/dev/x/card"),
    )
    assert paths(made) == OWN | {"/dev"}
    told = dict(made.reasons())
    assert told["open char-widget*"].endswith("a container is privileged for it")
    assert told["open char-card*"].endswith("a container has it from its runtime")


PARTS = st.sampled_from(["dev", "sys", "a", "b", "ab", "A"])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


@effort(100)
@given(read=st.lists(PATHS), written=st.lists(PATHS), nodes=st.lists(PATHS))
def test_whatever_is_asked_for_is_covered_once_under_names_of_its_own(
    read: list[str], written: list[str], nodes: list[str]
) -> None:
    made = deployment(Needs(host_paths=read, writable_paths=written), nodes=nodes)

    def covers(path: str, other: str) -> bool:
        return other == path or other.startswith(path.rstrip("/") + "/")

    folders = [folder for folder in made.folders if folder.path not in OWN]
    writable = [folder.path for folder in folders if folder.writable]
    for path in [each for each in read if each != "/sys"] + [*(DEVICE_MODEL if "/sys" in read else ())]:
        assert any(covers(folder.path, path) for folder in folders)
    for path in nodes:
        assert any(covers(folder.path, path) for folder in folders)
    assert all(any(covers(each, path) for each in writable) for path in written)
    # what may be written to was asked for; the links of sysfs lead to its devices
    assert set(writable) - {"/sys/devices"} <= set(written)
    names = [folder.name for folder in made.folders]
    assert len(names) == len(set(names))
    assert all(len(name) <= 63 and name.strip("-") == name for name in names)
    seen = [folder.seen_at for folder in made.folders]
    assert len(seen) == len(set(seen))


def test_a_file_of_a_device_in_sysfs_was_not_writable() -> None:
    """``/sys/class/card/card0`` is a link to ``/sys/devices``, which was mounted read-only."""
    made = deployment(Needs(host_paths=["/sys"], writable_paths=["/sys/class/card"]))
    assert {folder.path for folder in made.folders if folder.writable} - OWN == {"/sys/class/card", "/sys/devices"}
    assert dict(made.reasons())["/sys/devices (to write)"].startswith("the links in /sys/class/card lead there")

    made = deployment(Needs(writable_paths=["/sys/module/card/parameters"]))
    assert {folder.path for folder in made.folders if folder.writable} - OWN == {"/sys/module/card/parameters"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"host_paths": ["sys"]}, "host_paths 'sys': must be an absolute path"),
        ({"injected_nodes": ["nvidia*"]}, "injected_nodes 'nvidia\\*': must be an absolute path"),
        ({"capabilities": ["SYS ADMIN"]}, "capability 'SYS ADMIN': must be .* for example 'SYS_ADMIN'"),
    ],
)
def test_a_need_that_nobody_could_meet_is_refused_when_it_is_told(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        Needs(**given)


def test_a_pods_probes_need_a_port_that_is_known() -> None:
    with pytest.raises(InvalidValueError, match="--http :0: the kubelet's probes need a port that is known"):
        deployment(settings=Settings(http=Address("", 0)))
