from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from kdp import ConfigurationError, HealthPolicy
from kdp.daemon.parsers import Address
from kdp.daemon.setting import GivenValue
from kdp.daemon.settings import SETTINGS, RunOptions, ServeOptions, Settings
from kdp.daemon.sources import from_environment, from_keywords, resolve


def test_without_any_source_everything_has_its_default() -> None:
    settings = resolve([])
    assert settings == Settings()
    assert settings.paths.kubelet_socket == Path("/var/lib/kubelet/device-plugins/kubelet.sock")
    assert settings.http is None
    assert settings.poll_interval is ...


def test_a_stronger_source_hides_a_weaker_one_even_a_wrong_one() -> None:
    strong = from_keywords({"poll_interval": 7}, function="kdp.run")
    weak = from_environment({"KDP_POLL_INTERVAL": "often", "KDP_LOG_LEVEL": "debug"})
    settings = resolve([strong, weak])
    assert settings.poll_interval == 7.0
    assert settings.log_level == "debug"


def test_an_empty_variable_counts_as_not_set() -> None:
    assert resolve([from_environment({"KDP_HTTP": "", "KDP_KUBELET_ROOT": ""})]) == Settings()


def test_every_directory_follows_the_root_unless_it_is_given() -> None:
    given = {"KDP_KUBELET_ROOT": "/k", "KDP_DEVICE_PLUGIN_DIR": "/d", "KDP_PODS_API_DIR": "/p"}
    paths = resolve([from_environment(given)]).paths
    assert paths.device_plugin_dir == Path("/d")
    assert paths.plugins_registry_dir == Path("/k/plugins_registry")
    assert paths.pod_resources_dir == Path("/k/pod-resources")
    assert paths.pods_api_dir == Path("/p")


@pytest.mark.parametrize(
    ("text", "value"),
    [(":8080", Address("", 8080)), ("[::1]:9", Address("::1", 9))],
)
def test_an_address_is_a_host_and_a_port(text: str, value: Address) -> None:
    address = resolve([{"http": GivenValue("--http", text)}]).http
    assert address == value
    assert str(address) == text


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("http", "8080", "KDP_HTTP: '8080' must be ADDRESS:PORT, or :PORT for every address; for example ':8080' or"),
        ("http", "::1:80", "KDP_HTTP: '::1:80' must be ADDRESS:PORT"),
        ("http", ":99999", "KDP_HTTP: ':99999' must be ADDRESS:PORT"),
        ("poll_interval", "nan", "KDP_POLL_INTERVAL: 'nan' must be a number of seconds above 0"),
        (
            "health_policy",
            "failures=0",
            "KDP_HEALTH_POLICY: 'failures=0' is refused: failures=0: must be a whole number of 1 or more",
        ),
        ("health_policy", 3, "KDP_HEALTH_POLICY: 3 must be thresholds by name; for example 'failures=2,hold_down=30'"),
        (
            "log_level",
            "Warn",
            "KDP_LOG_LEVEL: 'Warn' must be one of debug, info, warning, error; did you mean 'warning'",
        ),
        ("kubelet_root", 3, "KDP_KUBELET_ROOT: 3 must be a path; for example '/var/lib/kubelet'"),
        ("evict_after", "soon", "KDP_EVICT_AFTER: 'soon' must be from 1 second to 30 days, in seconds or as '90s'"),
        ("evict_after", "721h", "KDP_EVICT_AFTER: '721h' must be from 1 second to 30 days"),
        ("evict_limit", "0", "KDP_EVICT_LIMIT: '0' must be a whole number from 1 to 1000; for example 3"),
        ("startup_taint", "a b", "KDP_STARTUP_TAINT: 'a b' is refused: "),
    ],
)
def test_a_wrong_value_is_refused_with_its_source_and_a_valid_example(name: str, value: object, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve([{name: GivenValue(SETTINGS[name].variable, value)}])
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    "value",
    [
        "hold-down=30,flaps=none",
        {"hold-down": 30, "flaps": None},
        HealthPolicy(hold_down=30, flaps=None),
    ],
)
def test_thresholds_are_text_a_mapping_or_a_policy(value: object) -> None:
    numbers = resolve([{"health_policy": GivenValue("health-policy in /etc/kdp.yaml", value)}]).health_policy
    assert numbers is not None
    assert HealthPolicy().changed(numbers) == HealthPolicy(hold_down=30, flaps=None)


def test_nothing_is_saved_if_nothing_is_to_be() -> None:
    assert resolve([]).state_dir == Path("/var/lib/kdp")
    assert resolve([from_environment({"KDP_STATE_DIR": "none"})]).state_dir is None
    assert resolve([from_keywords({"state_dir": None}, function="kdp.serve")]).state_dir is None
    assert resolve([from_keywords({"state_dir": "/s"}, function="kdp.run")]).state_dir == Path("/s")


def test_an_unknown_keyword_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"kdp\.run has no option 'pol_interval'; it has kubelet_root, "):
        from_keywords({"pol_interval": 3}, function="kdp.run")


def test_serve_leaves_the_logs_to_the_program() -> None:
    with pytest.raises(ConfigurationError, match=r"kdp\.serve has no option 'log_level'"):
        from_keywords({"log_level": "debug"}, function="kdp.serve")


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("replicas", "1001", "must be a whole number from 1 to 1000"),
        ("replicas", True, "must be a whole number"),
        ("replicas_for", "gpu-1", "must be SELECTOR=NUMBER"),
        ("replicas_for", "gpu-1=0", "gives 'gpu-1' '0' replicas: the number must be a whole number from 1 to 1000"),
        ("replicas_for", {"gpu-1": 0}, "gives 'gpu-1' 0 replicas: the number must be"),
        ("replica_placement", "even", "must be one of spread, packed, distinct"),
    ],
)
def test_a_wrong_sharing_or_policy_is_refused(name: str, value: object, what: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve([{name: GivenValue("here", value)}])
    assert str(caught.value).startswith(f"here: {value!r} {what}")


def test_sharing_is_made_of_its_settings() -> None:
    from kdp.allocation import Override, Sharing

    assert resolve([]).sharing is None
    given = {
        "KDP_REPLICAS": "4",
        "KDP_REPLICAS_FOR": "model=A100*=8, gpu-1=1",
        "KDP_REPLICA_PLACEMENT": "distinct",
        "KDP_REPLICA_LIMIT": "2",
        "KDP_REPLICA_RESOURCE": "shared",
    }
    assert resolve([from_environment(given)]).sharing == Sharing(
        replicas=4,
        overrides=[Override("model=A100*", 8), Override("gpu-1", 1)],
        placement="distinct",
        limit=2,
        rename=True,
    )
    only = resolve([from_keywords({"replicas_for": {"gpu-1": 2}}, function="kdp.run")]).sharing
    assert only == Sharing(overrides=[Override("gpu-1", 2)])


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (
            {"KDP_REPLICA_LIMIT": "2"},
            "KDP_REPLICA_LIMIT: nothing is shared, so it has no effect; say how many replicas, as --replicas 4, or",
        ),
        (
            {"KDP_CDI_DIR": "/etc/cdi"},
            "KDP_CDI_DIR: CDI is off, so it has no effect; switch it on with --cdi beside, or leave it out",
        ),
        (
            {"KDP_HTTP_DETAILS": "all"},
            "KDP_HTTP_DETAILS: no probe is answered over TCP, so it has no effect; give --http :8080, or leave it out",
        ),
        (
            {"KDP_METRICS": "on", "KDP_STATE_DIR": "none"},
            "KDP_METRICS: neither --http nor --socket is given, so nothing can answer, so it has no effect",
        ),
    ],
)
def test_a_setting_without_an_effect_was_taken_silently(given: dict[str, str], refusal: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        resolve([from_environment(given)])
    assert str(refused.value).startswith(refusal)


@pytest.mark.parametrize(
    "given",
    [
        {"KDP_CDI_DIR": "/etc/cdi", "KDP_CDI": "only", "KDP_CDI_NAMES": "both"},
        {"KDP_CDI_DIR": "/etc/cdi", "KDP_MODE": "dra", "KDP_NODE_NAME": "a"},
        {"KDP_CDI_DIR": "/var/run/cdi", "KDP_CDI_NAMES": "field", "KDP_HTTP_DETAILS": "local"},
    ],
)
def test_a_setting_with_an_effect_or_its_default_is_taken(given: dict[str, str]) -> None:
    resolve([from_environment(given)])


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ("all", ()),
        ("example.com/zone=1, example.com/fabric=a", (("example.com/fabric", "a"), ("example.com/zone", "1"))),
    ],
)
def test_the_nodes_of_a_pool_are_told_by_labels(given: object, labels: object) -> None:
    layer = from_keywords({"mode": "dra-controller", "pool": "fabric/a", "pool_nodes": given}, function="kdp.serve")
    settings = resolve([layer])
    assert (settings.pool, settings.pool_nodes) == ("fabric/a", labels)
    assert settings.node_name is None


@pytest.mark.parametrize("given", ["a=1,a=2", "A b=1", {"a": 1}])
def test_what_is_no_label_of_nodes_is_refused(given: object) -> None:
    layer = {"pool_nodes": GivenValue("--pool-nodes", given)}
    mode = {"mode": GivenValue("--mode", "dra-controller"), "pool": GivenValue("--pool", "a")}
    with pytest.raises(ConfigurationError, match=r"^--pool-nodes: "):
        resolve([layer, mode])


def test_a_driver_replaces_the_resource_of_another_plugin() -> None:
    """Its ids are not those of the driver's devices, so an administrator must name it."""
    given = {"KDP_MODE": "dra", "KDP_NODE_NAME": "n", "KDP_REPLACES": "other.com/card"}
    assert resolve([from_environment(given)]).replaces == "other.com/card"


@pytest.mark.parametrize("given", ["card", "other.com/", "kubernetes.io/card", ""])
def test_what_is_no_extended_resource_is_not_replaced(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--replaces: "):
        resolve([{"mode": GivenValue("--mode", "dra"), "replaces": GivenValue("--replaces", given), **NODE}])


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), (" 5M ", 300)])
def test_a_duration_has_a_unit_or_is_in_seconds(text: object, seconds: float) -> None:
    settings = resolve([{"on_unhealthy": GivenValue("here", "evict"), "evict_after": GivenValue("here", text), **NODE}])
    assert settings.evict_after == seconds


NODE = {"node_name": GivenValue("there", "node-0")}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"events": "on"}, "--events on needs the node's name, as the API server has it; give --node-name"),
        ({"evict_after": "90"}, "evict_after: no pod is evicted, so it has no effect; say --on-unhealthy evict"),
        ({"kubeconfig": "/k"}, "kubeconfig: nothing asks the API server, so it has no effect; say --events on"),
        ({"events": "on", "mode": "dra", "node_name": "n"}, "events: only a device plugin has it"),
        ({"replaces": "other.com/card"}, "replaces: only a DRA driver has it"),
        (
            {"replaces": "other.com/card", "mode": "dra-controller", "pool": "a"},
            "replaces: only a node's driver has it, and the mode is dra-controller",
        ),
    ],
)
def test_what_is_done_in_the_cluster_needs_its_settings(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve([{name: GivenValue(name, value) for name, value in given.items()}])
    assert str(caught.value).startswith(sentence)


def test_run_takes_each_setting_as_a_keyword() -> None:
    """A key that a type checker does not know was noticed by nobody."""
    assert RunOptions.__optional_keys__ == {field.name for field in attrs.fields(Settings)}
    assert ServeOptions.__optional_keys__ == RunOptions.__optional_keys__ - {"log_format", "log_level"}
