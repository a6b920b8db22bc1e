"""The values of a Helm chart: their defaults with a comment for each, and the schema that refuses all others.

The schema of the process's settings is narrower than their own readers where a reader takes several forms: a chart has
one form for each setting. What it lets pass, the process still checks.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from ...daemon import parsers
from ...daemon.setting import Mode
from ...daemon.settings import SETTINGS
from .kubernetes import rolling_update, tolerations_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ...daemon.setting import Setting
    from .deployment import Deployment
    from .placement import Placement

Document = dict[str, Any]
Schema = dict[str, Any]

FIXED: Final = ("mode", "driver_name", "pool", "device_status")
"""Settings that decide which objects there are; another value takes another chart."""

_SUBDOMAIN: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*"
_WORD: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

_PATH: Final[Schema] = {"type": "string", "pattern": "^/"}

NODE_OF_TARGET: Final = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}
"""A rule of Prometheus that gives each of a pod's series its node's name."""

_OF_PARSER: Final[dict[Any, Schema]] = {
    parsers.path: _PATH,
    parsers.path_or_none: {"type": "string", "pattern": "^(/.*|none)$"},
    parsers.poll_interval: {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "none"}]},
    parsers.address: {"type": "string", "pattern": r"^[^ ]*:[1-9][0-9]{0,4}$"},
    parsers.taint_key: {"type": "string", "pattern": f"^({_SUBDOMAIN}/)?{_WORD}$"},
    parsers.taint: {"enum": ["NoSchedule", "NoExecute", "None", "off"]},
}


@final
@attrs.frozen(kw_only=True)
class ChartFacts:
    """The facts of a chart, besides the deployment.

    Attributes:
        version: The chart's version, a semantic one.
        app_version: The image's version.
        description: One line.
        mode: In which mode the devices are served.
        resource: The extended resource that `helm test` requests; `None` if only the values name it.
        parameters: The schema of the constructor's parameters.
        fixed: The parameters with an effect on the pod's mounts and rights, each with the values without that effect;
            `None` if there is no such value.
        config: The given settings, by key.
        given: The given parameters, by name.
        optional_paths: The optional paths that were chosen.
        dashboard: Grafana's dashboard, as JSON.
        rules: Prometheus's alerts, as YAML.
    """

    version: str
    app_version: str
    description: str
    mode: Mode
    resource: str | None
    parameters: Schema
    fixed: Mapping[str, tuple[object, ...] | None]
    config: dict[str, Any]
    given: dict[str, Any]
    optional_paths: tuple[str, ...] = ()
    dashboard: str = attrs.field(repr=False)
    rules: str = attrs.field(repr=False)


_STRING: Final[Schema] = {"type": "string"}
_BOOL: Final[Schema] = {"type": "boolean"}
_OBJECT: Final[Schema] = {"type": "object"}
_LABEL: Final[Schema] = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
_NAME: Final[Schema] = {"type": "string", "maxLength": 253, "pattern": f"^({_SUBDOMAIN})?$"}
"""The name of an object of Kubernetes, or empty."""

_STRINGS: Final[Schema] = {"type": "object", "additionalProperties": _STRING}
_OBJECTS: Final[Schema] = {"type": "array", "items": _OBJECT}


def _closed(properties: dict[str, Schema], *required: str) -> Schema:
    made: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**made, "required": list(required)} if required else made


_MONITOR: Final = _closed(
    {
        "enabled": _BOOL,
        "interval": {**_STRING, "pattern": "^[0-9]+(ms|s|m|h)$"},
        "labels": _STRINGS,
        "relabelings": _OBJECTS,
    }
)


def split_image(reference: str) -> dict[str, str]:
    """Return the repository, the tag, and the digest of an image's reference."""
    name, _, digest = reference.partition("@")
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:  # the colon of the registry's port
        repository, tag = name, ""
    return {"repository": repository, "tag": tag, "digest": digest}


def _defaults(deployment: Deployment, placement: Placement, facts: ChartFacts) -> Document:
    """Return the values by name, as the manifests of the other formats have them."""
    is_controller = deployment.is_controller
    monitor: Document = {"enabled": False, "interval": "30s", "labels": {}, "relabelings": [NODE_OF_TARGET]}
    priority = "system-cluster-critical" if is_controller else "system-node-critical"
    values: Document = {
        "image": {**split_image(placement.image), "pullPolicy": ""},
        "pullSecrets": list(placement.pull_secrets),
        "fullnameOverride": "",
        "nodeSelector": placement.node_selector,
        "affinity": placement.affinity or {},
        "tolerations": [each.document() for each in tolerations_of(deployment, placement)],
        "priorityClassName": priority if placement.priority_class is None else placement.priority_class,
        "runtimeClassName": placement.runtime_class or "",
        "selinuxType": placement.selinux_type or "",
        "mountPropagation": placement.propagation,
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": placement.memory_limit}},
        "probes": deployment.probing,
        "networkPolicy": {"enabled": placement.network_policy, "metricsFrom": placement.metrics_from or ""},
        "openshift": placement.openshift,
        "podMonitor": monitor,
        "serviceMonitor": monitor,
        "dashboard": {"enabled": False, "labels": {"grafana_dashboard": "1"}, "annotations": {}},
        "rules": {"enabled": False, "labels": {}},
        "files": dict(deployment.files),
        "podLabels": {},
        "podAnnotations": {},
        "extraEnv": [],
        "extraVolumes": [],
        "extraVolumeMounts": [],
        "serviceAccount": {"create": True, "name": "", "annotations": {}},
    }
    if deployment.needs.optional_paths:
        values["optionalPaths"] = list(facts.optional_paths)
    if deployment.cluster is not None and not is_controller:
        values["deviceClass"] = {"create": True}
    if not is_controller:
        values["cleanup"] = False
        values["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": rolling_update(deployment)}
        named = {} if deployment.cluster is not None else {"resource": facts.resource or ""}
        is_known = deployment.cluster is not None or facts.resource is not None
        values["test"] = {"enabled": is_known, **named, "resources": {}}
    return values


_ABOUT: Final = {
    "image": "The image, whose command is kdp. Without a tag, the chart's appVersion; a digest wins.",
    "pullSecrets": "Names of secrets with the credentials of the image's registry.",
    "fullnameOverride": "The name of all objects. Default: the release's, with the chart's unless it is part of that.",
    "nodeSelector": "Labels that a node must have, all of them.",
    "affinity": "Kubernetes' affinity. By default, a node needs one of the labels that the class names.",
    "tolerations": "Taints that keep the pods off no node, as Kubernetes has them.",
    "priorityClassName": "The pods' PriorityClass; empty: none.",
    "runtimeClassName": "The pods' RuntimeClass; empty: the default.",
    "selinuxType": "The process's SELinux type; empty: the runtime's default.",
    "mountPropagation": "host-to-container: the plugin sees later mounts of the node, and submounts are not read-only.",
    "resources": "Requests and limits. Commands in the container count towards the limit of memory.",
    "probes": "http: the kubelet asks at a port. exec: it runs kdp probe in the container, and no port is opened.",
    "networkPolicy": "Keeps other pods away from the port, but those of the namespace metricsFrom.",
    "openshift": "Whether to make an account, and security context constraints that allow this pod alone.",
    "podMonitor": "A PodMonitor for the Prometheus operator; it needs config.metrics.",
    "serviceMonitor": "A Service and a ServiceMonitor for the Prometheus operator, instead of a PodMonitor.",
    "dashboard": "A ConfigMap with the dashboard for Grafana's sidecar, which finds it by its labels. For one release.",
    "rules": "A PrometheusRule with the alerts, for the Prometheus operator. For one release.",
    "files": "Files that the container has in /etc/kdp, by name; a parameter names one as /etc/kdp/NAME.",
    "podLabels": "Labels of the pods besides the chart's own.",
    "podAnnotations": "Annotations of the pods.",
    "updateStrategy": "How an update replaces the pods.",
    "extraEnv": "Variables of the container besides the chart's own, as Kubernetes has them.",
    "extraVolumes": "Volumes of the pods besides the chart's own.",
    "extraVolumeMounts": "Where the container has the extra volumes.",
    "serviceAccount": "The pods' account, if they need one. Without create, an account of that name must exist.",
    "optionalPaths": "Directories that the class reads where they are, and that all nodes of the pods have. A pod does "
    "not start on a node without one of them. The schema has those that the class names.",
    "deviceClass": "Whether this release makes the DeviceClass; a second release of the driver must not.",
    "cleanup": "Before an uninstall: have the pods remove the files that the plugin has left on their nodes, instead "
    "of serving. They get no more rights for it; the notes say what an administrator removes from the API server.",
    "test": "The test of a release, helm test: a pod that asks for one device.",
}


# -- values.yaml -------------------------------------------------------------------------------------------------------


def values_text(
    deployment: Deployment, placement: Placement, facts: ChartFacts, *, to_yaml: Callable[[Iterable[Document]], str]
) -> str:
    """Return ``values.yaml``: each value with a comment; options that were not given are comments."""
    lines: list[str] = []
    for name, value in _defaults(deployment, placement, facts).items():
        lines += [*_comment(_ABOUT[name], 0), *to_yaml([{name: value}]).splitlines(), ""]
    lines += _comment("Options of the process, with the keys of a `kdp run --config` file.", 0)
    lines.append("config:")
    for setting in offered(facts.mode):
        lines += _comment(str(setting_schema(setting)["description"]), 2)
        lines += _option(setting.key, facts.config, setting.shown_default, to_yaml, 2)
    lines += _comment("Parameters of the class.", 2)
    parameters = facts.parameters["properties"]
    given = {name: facts.given[name] for name in parameters if name in facts.given}
    lines.append("  set:")
    for name, schema in parameters.items():
        if schema.get("deprecated") and name not in given:
            continue
        about = _held(facts, name)["description"] if name in facts.fixed else schema["description"]
        lines += _comment(about, 4)
        lines += _option(name, given, None, to_yaml, 4)
    return "\n".join(lines) + "\n"


def _option(
    key: str,
    given: Document,
    default: str | None,
    to_yaml: Callable[[Iterable[Document]], str],
    indent: int,
) -> Iterator[str]:
    margin = " " * indent
    if key in given:
        yield from (f"{margin}{line}" for line in to_yaml([{key: given[key]}]).splitlines())
        return
    shown = "" if default is None else f" {to_yaml([{'v': default}])[3:].rstrip()}"
    yield f"{margin}# {key}:{shown}"


def _comment(text: str, indent: int) -> list[str]:
    margin = " " * indent
    plain = " ".join(text.split())
    return [f"{margin}# {line}" for line in textwrap.wrap(plain, 100 - indent, break_on_hyphens=False)]


# -- values.schema.json ------------------------------------------------------------------------------------------------


def values_schema(deployment: Deployment, facts: ChartFacts) -> Schema:
    """Return the schema of the values; nothing that it does not name is let through."""
    parameters = {
        name: _held(facts, name) if name in facts.fixed else schema
        for name, schema in facts.parameters["properties"].items()
    }
    config: Schema = _closed({setting.key: setting_schema(setting) for setting in offered(facts.mode)})
    config["properties"]["set"] = {
        **facts.parameters,
        "type": ["object", "null"],
        "description": "Parameters of the class.",
        "properties": parameters,
    }
    properties: dict[str, Schema] = {
        "image": _closed(
            {
                "repository": {**_STRING, "minLength": 1, "pattern": r"^\S+$"},
                "tag": {**_STRING, "pattern": r"^[\w.-]{0,128}$"},
                "digest": {**_STRING, "pattern": r"^(sha\d+:[0-9a-f]+)?$"},
                "pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
            },
            "repository",
        ),
        "pullSecrets": {"type": "array", "items": {**_NAME, "minLength": 1}},
        "fullnameOverride": {**_STRING, "pattern": "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"},
        "nodeSelector": {"type": ["object", "null"], "additionalProperties": _STRING},
        "affinity": {"type": ["object", "null"]},
        "tolerations": _OBJECTS,
        "priorityClassName": _NAME,
        "runtimeClassName": _NAME,
        "selinuxType": {**_STRING, "pattern": "^([A-Za-z][A-Za-z0-9_.-]{0,254})?$"},
        "mountPropagation": {"enum": ["none", "host-to-container"]},
        "resources": _OBJECT,
        "probes": {"enum": ["http", "exec"]},
        "networkPolicy": _closed({"enabled": _BOOL, "metricsFrom": {"anyOf": [{"const": ""}, _LABEL]}}),
        "openshift": _BOOL,
        "podMonitor": _MONITOR,
        "serviceMonitor": _MONITOR,
        "dashboard": _closed({"enabled": _BOOL, "labels": _STRINGS, "annotations": _STRINGS}),
        "rules": _closed({"enabled": _BOOL, "labels": _STRINGS}),
        "podLabels": {**_STRINGS, "propertyNames": {"not": {"const": "app.kubernetes.io/name"}}},
        "podAnnotations": _STRINGS,
        "extraEnv": _OBJECTS,
        "extraVolumes": _OBJECTS,
        "extraVolumeMounts": _OBJECTS,
        "serviceAccount": _closed({"create": _BOOL, "name": _NAME, "annotations": _STRINGS}),
        "files": {
            **_OBJECT,
            "propertyNames": {"pattern": "^[-._a-zA-Z0-9]{1,253}$"},
            "additionalProperties": _STRING,
        },
        "config": config,
        "global": {**_OBJECT, "description": "Values of the chart that this one is part of; they have no effect."},
    }
    if deployment.needs.optional_paths:
        one_of: Schema = {"enum": list(deployment.needs.optional_paths)}
        properties["optionalPaths"] = {"type": "array", "items": one_of, "uniqueItems": True}
    if deployment.cluster is not None and not deployment.is_controller:
        properties["deviceClass"] = _closed({"create": _BOOL})
    if not deployment.is_controller:
        properties["cleanup"] = _BOOL
        properties["updateStrategy"] = _OBJECT
        resource: Schema = {**_STRING, "pattern": f"^({_SUBDOMAIN}/[^/]+)?$"}
        named = {} if deployment.cluster is not None else {"resource": resource}
        properties["test"] = _closed({"enabled": _BOOL, **named, "resources": _OBJECT})
    described = {
        name: ({"description": _ABOUT[name], **schema} if name in _ABOUT else schema)
        for name, schema in properties.items()
    }
    described["config"]["description"] = "Options of the process, as in the file of kdp run --config."
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"Values of the chart {deployment.name}",
        **_closed(described, "image", "config"),
    }


def offered(mode: Mode) -> list[Setting]:
    """Return the settings that a chart for this mode offers, in the order of ``--help``."""
    return [
        setting
        for setting in SETTINGS.values()
        if mode in setting.modes and not setting.of_place and setting.name not in FIXED
    ]


def setting_schema(setting: Setting) -> Schema:
    """Return the schema of a setting's value."""
    parse: Any = setting.parse
    if isinstance(parse, parsers.OneOf):
        made: Schema = {"enum": list(parse.words)}
        if "off" in parse.words:  # which Helm's YAML reader takes for a bool, unless it is quoted
            made["enum"] += [True, False] if "on" in parse.words else [False]
    elif isinstance(parse, parsers.Number):
        made = {"type": "integer", "minimum": parse.least}
        if parse.most is not None:
            made["maximum"] = parse.most
    else:
        made = _OF_PARSER.get(parse, {"type": "string", "minLength": 1})
    if setting.name == "http":
        return {"description": "Where the probes are answered, as :9400. Default: a port of the chart's.", **made}
    default = "" if setting.shown_default is None else f" Default: {setting.shown_default}."
    return {"description": f"{setting.help.rstrip('.')}.{default}", **made}


def _held(facts: ChartFacts, name: str) -> Schema:
    """Return the schema of a parameter whose other values take another chart."""
    said = str(facts.parameters["properties"][name]["description"]).rstrip(".")
    allowed = facts.fixed[name]
    what = "Fixed in this chart" if allowed is None else f"In this chart only {', '.join(map(str, allowed))}"
    description = (
        f"{said}. {what}, because it changes what the pod is given of the node: write the chart anew with kdp "
        f"manifests --format helm --set {name}=..."
    )
    if allowed is not None:
        return {"description": description, "enum": list(allowed)}
    if name in facts.given:
        return {"description": description, "const": facts.given[name]}
    return {"description": description, "not": {}}
