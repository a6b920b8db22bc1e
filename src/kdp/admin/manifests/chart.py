"""A `Deployment` as a Helm chart: the objects of `kdp.admin.manifests.kubernetes`, with values in the place of choices.

The generator takes the objects of the other formats, puts a mark in place of each part that depends on a value, and an
expression in place of each mark. So a change of the objects reaches the chart, and with its default values a chart
renders to the same objects (`tests/node/test_charts.py`).

The needs of the class (`Needs`) are fixed when the generator writes the chart. A parameter that changes them cannot be
a value: the schema allows one value only.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from ...command.found_sockets import POD_VOLUME
from ...daemon.settings import DEFAULT_LABELS_DIR, SETTINGS
from . import chart_texts as texts
from .chart_values import offered, values_schema, values_text
from .cluster import Account
from .deployment import Deployment, default_http
from .kubernetes import daemon_set, probes_of, security_level

if TYPE_CHECKING:
    from .chart_values import ChartFacts
    from .placement import Placement

Document = dict[str, Any]
ToYaml = Callable[[Iterable[Document]], str]

_NAME: Final = "kdp-name-of-release"
_ACCOUNT: Final = "kdp-account-of-release"
_TAINT: Final = "kdp-taint-of-release"
_NAMESPACE: Final = "kdp-namespace-of-release"
_FULL: Final = '{{ include "kdp.name" . }}'
_QUOTED: Final = {
    _NAME: '{{ include "kdp.name" . | quote }}',
    _NAMESPACE: "{{ .Release.Namespace | quote }}",
    _ACCOUNT: '{{ include "kdp.account-name" . | quote }}',
}
_WHOLE = re.compile(rf": ({_NAME}|{_NAMESPACE}|{_ACCOUNT})$", re.MULTILINE)
_USER = re.compile(rf"(system:serviceaccount:{_NAMESPACE}):{_NAME}")
_LINE = re.compile(r"^(?P<indent> *)(?P<item>- )?'@@(?P<number>\d+)@@'(: null)?$", re.MULTILINE)
_INLINE = re.compile(r"'@@(\d+)@@'")
_SHIFTED = re.compile(r"nindent (\d+)")


def chart(deployment: Deployment, placement: Placement, facts: ChartFacts, *, to_yaml: ToYaml) -> dict[str, str]:
    """Return a chart's files by their paths in it."""
    marks = _Marks(to_yaml)
    documents = daemon_set(
        attrs.evolve(_with_whole_account(deployment), name=_NAME, files=deployment.files or {"none": ""}),
        attrs.evolve(placement, namespace=_NAMESPACE, openshift=True, network_policy=True, metrics_from=None),
    )
    files: dict[str, str] = {}
    for document in documents:
        # Helm's labels are not on the pods: a new version of the chart alone starts no pod anew.
        document["metadata"]["labels"] |= marks.block('{{- include "kdp.labels" . | nindent 0 }}')
        kind = document["kind"]
        if kind == "NetworkPolicy":
            text = marks.text(_with_policy(document, marks))
            files["templates/networkpolicy.yaml"] = _if(".Values.networkPolicy.enabled", text)
        elif kind == "ConfigMap":
            document["data"] = marks.inline("{{- toYaml .Values.files | nindent 2 }}")
            files["templates/configmap.yaml"] = _if(".Values.files", marks.text(document))
        elif kind == "SecurityContextConstraints":
            if placement.selinux_type is not None:
                _with_selinux(document, marks)
            files["templates/securitycontextconstraints.yaml"] = _if(".Values.openshift", marks.text(document))
        elif document is documents[-1]:
            _with_values(document, deployment, facts, marks)
            files[f"templates/{kind.lower()}.yaml"] = marks.text(document)
        else:
            name = kind.lower()
            number = sum(bool(re.fullmatch(rf"templates/{name}(-\d+)?\.yaml", path)) for path in files)
            path = f"templates/{name}{f'-{number + 1}' if number else ''}.yaml"
            files[path] = _of_account(document, deployment, marks)
    if deployment.needs.host_network:  # there it would do nothing
        files.pop("templates/networkpolicy.yaml", None)
    workload = documents[-1]["kind"].lower()
    return {
        "Chart.yaml": to_yaml([_about(deployment, facts)]),
        "values.yaml": values_text(deployment, placement, facts, to_yaml=to_yaml),
        "values.schema.json": json.dumps(values_schema(deployment, facts), indent=2) + "\n",
        ".helmignore": texts.IGNORED,
        "templates/_helpers.tpl": _filled(
            texts.HELPERS,
            folders=_folders(deployment),
            http=_default_http(deployment, measures=False),
            metrics=_default_http(deployment, measures=True),
            uninstall=_uninstall(deployment, facts),
            account=f"{{{{- if or {' '.join(_ON.values())} }}}}true{{{{ end }}}}" if _may_ask(deployment) else "true",
        ),
        "templates/NOTES.txt": _notes(deployment, facts, workload),
        "templates/_monitoring.tpl": texts.SCRAPED,
        "templates/podmonitor.yaml": texts.POD_MONITOR,
        "templates/servicemonitor.yaml": texts.SERVICE_MONITOR,
        "templates/dashboard.yaml": texts.DASHBOARD,
        "templates/prometheusrule.yaml": texts.PROMETHEUS_RULE,
        # Helm takes what is in a file as it is, so the braces of queries and of alerts' texts stay.
        "files/dashboard.json": facts.dashboard,
        "files/rules.yaml": facts.rules,
        **({} if deployment.is_controller else {"templates/tests/device.yaml": _test(deployment)}),
        **files,
    }


# -- marks -------------------------------------------------------------------------------------------------------------


@final
class _Marks:
    """Marks in objects, and the expressions that take their place in the text."""

    def __init__(self, to_yaml: ToYaml) -> None:
        self._to_yaml = to_yaml
        self._texts: list[str] = []

    def inline(self, expression: str) -> str:
        """Return a value that becomes this expression."""
        self._texts.append(expression)
        return f"@@{len(self._texts) - 1}@@"

    def block(self, text: str) -> Document:
        """Return fields that become these lines, indented as the fields are."""
        return {self.inline(text): None}

    def text(self, document: Document) -> str:
        """Return a template's text."""
        plain = self._to_yaml([document]).replace("{{", '{{ "{{" }}')
        # A name of digits alone would be a number to YAML.
        plain = _WHOLE.sub(lambda found: f": {_QUOTED[found[1]]}", plain)
        plain = _USER.sub(lambda found: f'{found[1]}:{{{{ include "kdp.account-name" . }}}}', plain)
        plain = plain.replace(_TAINT, '{{ include "kdp.setting" (list . "startup-taint") }}')
        plain = plain.replace(_NAMESPACE, "{{ .Release.Namespace }}").replace(_NAME, _FULL)
        lines = _LINE.sub(lambda found: self._lines(found["number"], found["indent"]), plain)
        return _INLINE.sub(lambda found: self._texts[int(found[1])], lines)

    def _lines(self, number: str, indent: str) -> str:
        text = _SHIFTED.sub(lambda found: f"nindent {int(found[1]) + len(indent)}", self._texts[int(number)])
        return "\n".join(f"{indent}{line}" if line else line for line in text.splitlines())


def _if(condition: str, text: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def _filled(text: str, **parts: str) -> str:
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


# -- the objects -------------------------------------------------------------------------------------------------------


def _may_ask(deployment: Deployment) -> bool:
    """Return whether values decide if the process asks the API server: a driver asks it, and so do node labels."""
    return deployment.cluster is None and deployment.config_label is None


def _with_whole_account(deployment: Deployment) -> Deployment:
    """Return a device plugin's deployment with all rights that values may ask for, and a driver's as it is."""
    if deployment.cluster is not None:
        return deployment
    account = Account(events=True, evicts=True, startup_taint=_TAINT, reads_labels=deployment.config_label is not None)
    return attrs.evolve(deployment, account=account)


def _setting(key: str) -> str:
    return f'(include "kdp.setting" (list . "{key}"))'


_ON: Final = {
    "events": f'(eq {_setting("events")} "on")',
    "evicts": f'(eq {_setting("on-unhealthy")} "evict")',
    "taint": _setting("startup-taint"),
}
_ASKS: Final = '(include "kdp.account" .)'


def _of_account(document: Document, deployment: Deployment, marks: _Marks) -> str:
    """Return the template of an account, a right, a policy, or a class; of a plugin's, only if values ask for it."""
    kind, called = document["kind"], document["metadata"]["name"]
    is_optional = deployment.cluster is None
    condition = None
    if kind == "DeviceClass":
        condition = ".Values.deviceClass.create"
    elif kind == "ServiceAccount":
        document["metadata"]["name"] = _ACCOUNT
        document["metadata"] |= marks.block(
            _WITH.format(field="annotations", value="serviceAccount.annotations", indent=2)
        )
        condition = ".Values.serviceAccount.create"
        if is_optional:
            condition = f"and {condition} (or {_ASKS} .Values.openshift)"
    elif kind == "ClusterRoleBinding":
        (subject,) = document["subjects"]
        subject["name"] = _ACCOUNT
    if is_optional and kind.startswith("Validating"):
        condition = _ON["events" if called.endswith("-events") else "taint"]
    elif is_optional and kind.startswith("ClusterRole"):
        condition = _ASKS
        if kind == "ClusterRole":
            reads_labels = deployment.config_label is not None
            document["rules"] = [
                part for rule in document["rules"] for part in _rule(rule, marks, reads_labels=reads_labels)
            ]
    text = marks.text(document)
    return text if condition is None else _if(condition, text)


def _rule(rule: Document, marks: _Marks, *, reads_labels: bool) -> list[Any]:
    """Return a right of a plugin with the condition that it is needed."""
    (resource,) = rule["resources"]
    events, evicts, taint = _ON.values()
    needed = {
        "events": events,
        "pods": f"or {events} {evicts}",
        "pods/eviction": evicts,
        "nodes": f"or {evicts} {taint}{' true' if reads_labels else ''}",
    }[resource]
    if resource == "nodes":
        rule["verbs"] = ["get", marks.inline(f"{{{{- if {taint} }}}}\n- patch\n{{{{- end }}}}")]
    return [marks.inline(f"{{{{- if {needed} }}}}"), rule, marks.inline("{{- end }}")]


def _with_policy(document: Document, marks: _Marks) -> Document:
    document["spec"] |= marks.block(
        "{{- with .Values.networkPolicy.metricsFrom }}\n"
        "ingress:\n"
        "- from:\n"
        "  - namespaceSelector:\n"
        "      matchLabels:\n"
        "        kubernetes.io/metadata.name: {{ . | quote }}\n"
        "  ports:\n"
        "  - port: http\n"
        "    protocol: TCP\n"
        "{{- end }}"
    )
    return document


def _with_selinux(document: Document, marks: _Marks) -> None:
    if document["seLinuxContext"]["type"] != "MustRunAs":
        return
    document["seLinuxContext"] = marks.block(
        "{{- if .Values.selinuxType }}\n"
        "type: MustRunAs\n"
        "seLinuxOptions:\n"
        "  type: {{ .Values.selinuxType | quote }}\n"
        "  level: s0\n"
        "{{- else }}\n"
        "type: RunAsAny\n"
        "{{- end }}"
    )


_WITH: Final = "{{{{- with .Values.{value} }}}}\n{field}:\n{{{{- toYaml . | nindent {indent} }}}}\n{{{{- end }}}}"
_EXTRA: Final = "{{{{- with .Values.{value} }}}}\n{{{{- toYaml . | nindent 0 }}}}\n{{{{- end }}}}"
_GIVEN: Final = "{{{{- with .Values.{value} }}}}\n{field}: {{{{ . | quote }}}}\n{{{{- end }}}}"


def _with_values(document: Document, deployment: Deployment, facts: ChartFacts, marks: _Marks) -> None:
    """Put expressions in the place of what the values decide about the pods."""
    template = document["spec"]["template"]
    if not deployment.is_controller:
        document["spec"]["updateStrategy"] = marks.block(_UPDATES)
    template["metadata"]["labels"] |= marks.block(
        "{{- with .Values.podLabels }}\n{{- toYaml . | nindent 0 }}\n{{- end }}"
    )
    template["metadata"] |= marks.block(_WITH.format(field="annotations", value="podAnnotations", indent=2))
    pod = template["spec"]
    made: Document = {}
    for field in ("priorityClassName", "runtimeClassName"):
        made |= marks.block(_GIVEN.format(field=field, value=field))
    tolerations = _WITH.format(field="tolerations", value="tolerations", indent=0)
    made |= marks.block(tolerations if deployment.cluster is not None else texts.TOLERATIONS)
    made |= marks.block(_WITH.format(field="nodeSelector", value="nodeSelector", indent=2))
    made |= marks.block(_WITH.format(field="affinity", value="affinity", indent=2))
    made |= marks.block(
        "{{- with .Values.pullSecrets }}\nimagePullSecrets:\n"
        "{{- range . }}\n- name: {{ . | quote }}\n{{- end }}\n{{- end }}"
    )
    pod["serviceAccountName"] = _ACCOUNT
    if deployment.cluster is None:
        made |= marks.block(
            f"{{{{- if or {_ASKS} .Values.openshift }}}}\nserviceAccountName: {_QUOTED[_ACCOUNT]}\n{{{{- end }}}}"
        )
        del pod["serviceAccountName"]
        pod["automountServiceAccountToken"] = marks.inline('{{ include "kdp.account" . | default "false" }}')
    ours = ("priorityClassName", "runtimeClassName", "tolerations", "nodeSelector", "affinity", "imagePullSecrets")
    kept = {name: held for name, held in pod.items() if name not in ours}
    (container,) = kept["containers"]
    # The backend reads these, or a parameter names them; kdp itself needs the others.
    read = [folder for folder in deployment.folders if folder.name.startswith(("node-", "set-"))]
    container["image"] = marks.inline('{{ include "kdp.image" . | quote }}')
    container["args"] = [
        *([] if deployment.is_controller else [marks.inline(texts.CLEANING)]),
        *_arguments(deployment, facts, marks),
        *([] if deployment.is_controller else [marks.inline("{{- end }}")]),
    ]
    container["volumeMounts"] = [
        *([] if deployment.is_controller else [marks.inline(_MOUNTS)]),
        *(
            part
            for folder in read
            for part in _optional(
                folder.path, _mount(folder.name, folder.seen_at, marks, writable=folder.writable), deployment, marks
            )
        ),
        *(each for each in container["volumeMounts"] if each["name"] == POD_VOLUME),
        marks.inline("{{- if .Values.files }}\n- name: config\n  mountPath: /etc/kdp\n  readOnly: true\n{{- end }}"),
        marks.inline(_EXTRA.format(value="extraVolumeMounts")),
    ]
    container["env"] = [
        *container["env"],
        marks.inline(_EXTRA.format(value="extraEnv")),
    ]
    paths = {folder.name: folder.path for folder in read}
    kept["volumes"] = [
        *([] if deployment.is_controller else [marks.inline(_VOLUMES)]),
        *(
            part
            for each in kept["volumes"]
            if each["name"] in paths
            for part in _optional(paths[each["name"]], each, deployment, marks)
        ),
        *(each for each in kept["volumes"] if each["name"] == POD_VOLUME),
        marks.inline(
            f"{{{{- if .Values.files }}}}\n- name: config\n  configMap:\n    name: {_QUOTED[_NAME]}\n{{{{- end }}}}"
        ),
        marks.inline(_EXTRA.format(value="extraVolumes")),
    ]
    selinux = container["securityContext"].pop("seLinuxOptions", None)
    if selinux is not None:
        container["securityContext"] |= marks.block(
            "{{- with .Values.selinuxType }}\nseLinuxOptions:\n  type: {{ . | quote }}\n  level: s0\n{{- end }}"
        )
    rest = {name: container.pop(name) for name in list(container)[list(container).index("env") + 1 :]}
    for name in ("ports", "startupProbe", "livenessProbe", "readinessProbe", "resources"):
        rest.pop(name, None)
    container |= marks.block(_GIVEN.format(field="imagePullPolicy", value="image.pullPolicy"))
    container |= marks.block(_probes(cleans=not deployment.is_controller))
    container |= marks.block(_WITH.format(field="resources", value="resources", indent=2))
    container |= rest
    template["spec"] = made | kept


def _probes(*, cleans: bool) -> str:
    """Return the probes of both kinds, of which a value chooses one."""

    def told(name: str, probe: Document) -> str:
        if "exec" in probe:
            how = f"  exec:\n    command: [{', '.join(probe['exec']['command'])}]\n"
        else:
            how = _filled(texts.HTTP_GET, path=probe["httpGet"]["path"])
        fields = ("timeoutSeconds", "periodSeconds", "failureThreshold")
        timing = "".join(f"  {field}: {probe[field]}\n" for field in fields if field in probe)
        return f"{name}:\n{how}{timing}"

    by_exec = "".join(itertools.starmap(told, probes_of("exec").items()))
    by_http = "".join(itertools.starmap(told, probes_of("http").items()))
    return _filled(texts.CLEANING_PROBES if cleans else texts.PROBES, exec=by_exec, http=by_http)


_UPDATES: Final = """\
{{- if .Values.cleanup }}
{{- /* The plugin's pod ends before the one begins that cleans up after it. */}}
type: RollingUpdate
rollingUpdate:
  maxUnavailable: 10%
  maxSurge: 0
{{- else }}
{{- toYaml .Values.updateStrategy | nindent 0 }}
{{- end }}"""


def _uninstall(deployment: Deployment, facts: ChartFacts) -> str:
    """Return the arguments of ``kdp uninstall``, as the body of a named template."""
    names = dict.fromkeys([*facts.given, *facts.parameters["properties"]])
    keys = ("kubelet-root", "device-plugin-dir", "plugins-registry-dir", "cdi-dir", "state-dir", "labels-dir")
    driver = "" if deployment.cluster is None else f"\n- --driver-name={deployment.cluster.driver}"
    target = json.dumps(deployment.target.replace("$", "$$")).replace("{{", '{{ "{{" }}')
    return "".join(
        (
            f"- uninstall\n- {target}{driver}",
            *(f'\n{{{{- include "kdp.parameter" (list . "{name}") }}}}' for name in names),
            *(f'\n{{{{- include "kdp.flag" (list . "{key}") }}}}' for key in keys),
        )
    )


_MOUNTS: Final = """\
{{- range include "kdp.folders" . | fromYamlArray }}
- name: {{ .name }}
  mountPath: {{ .path | quote }}
  {{- if not .writable }}
  {{- include "kdp.readOnly" $ | nindent 2 }}
  {{- end }}
{{- end }}"""

_VOLUMES: Final = """\
{{- range include "kdp.folders" . | fromYamlArray }}
- name: {{ .name }}
  hostPath:
    path: {{ .path | quote }}
    type: {{ ternary "DirectoryOrCreate" "Directory" (default false .made) }}
{{- end }}"""


def _optional(path: str, part: Document, deployment: Deployment, marks: _Marks) -> list[Any]:
    """Return a volume or mount of a directory; of an optional one, with the condition that a value names it."""
    if path not in deployment.needs.optional_paths:
        return [part]
    return [marks.inline(f'{{{{- if has "{path}" .Values.optionalPaths }}}}'), part, marks.inline("{{- end }}")]


def _mount(name: str, path: str, marks: _Marks, *, writable: bool) -> Document:
    read_only = {} if writable else marks.block('{{- include "kdp.readOnly" . | nindent 0 }}')
    return {"name": name, "mountPath": path, **read_only}


def _arguments(deployment: Deployment, facts: ChartFacts, marks: _Marks) -> list[str]:
    """Return the command's arguments: what is fixed, and an expression for each option."""
    given = {flag: text for flag, _, text in (option.partition("=") for option in deployment.options)}
    offers = {setting.flag: setting.key for setting in offered(facts.mode)}
    chosen = [f"{flag}={given[flag]}" for flag in ("--config", "--config-label") if flag in given]
    arguments = ["run", deployment.target]
    # What was given comes first, as in the other formats.
    arguments += [
        marks.inline(f'{{{{- include "kdp.parameter" (list . "{name}") | nindent 0 }}}}')
        for name in dict.fromkeys([*facts.given, *facts.parameters["properties"]])
    ]
    arguments += chosen
    for flag in (setting.flag for setting in SETTINGS.values()):
        if flag in offers:
            arguments.append(marks.inline(f'{{{{- include "kdp.flag" (list . "{offers[flag]}") | nindent 0 }}}}'))
        elif flag in given and flag != "--host-root":
            arguments.append(f"{flag}={given[flag]}".replace("$", "$$"))
    if "--host-root" in given:
        arguments.append(f"--host-root={given['--host-root']}")
    default = (
        '{{- if not (include "kdp.setting" (list . "http")) }}\n'
        '{{- with include "kdp.http" . }}\n- {{ printf "--http=%s" . | quote }}\n{{- end }}\n{{- end }}'
    )
    return [*arguments, marks.inline(default)]


# -- the rest ----------------------------------------------------------------------------------------------------------


def _default_http(deployment: Deployment, *, measures: bool) -> str:
    """Return where the probes are answered if no value says so, without or with metrics."""
    return str(default_http(deployment.name, in_the_nodes=deployment.needs.host_network, measures=measures))


def _folders(deployment: Deployment) -> str:
    if deployment.cluster is None:
        claims = "" if deployment.driver is None else _filled(texts.CLAIMS, driver=deployment.driver)
        return _filled(texts.PLUGIN_FOLDERS, claims=claims, labels=str(DEFAULT_LABELS_DIR))
    if deployment.is_controller:
        return "[]"
    folders = texts.DRIVER_FOLDERS if deployment.cluster.pool is None else texts.POOL_FOLDERS
    return _filled(folders, driver=deployment.cluster.driver, labels=str(DEFAULT_LABELS_DIR))


def _notes(deployment: Deployment, facts: ChartFacts, workload: str) -> str:
    level, why = security_level(deployment)
    what = "a device plugin"
    if deployment.cluster is not None:
        what = f"the DRA driver {deployment.cluster.driver}"
    text = texts.NOTES
    if deployment.is_controller:
        text = text.replace("{{- if .Values.test.enabled }}", "{{- if false }}")
    text = _filled(text, what=what, level=level, why=why, workload=workload)
    return _filled(text, named=_named(deployment, facts))


def _named(deployment: Deployment, facts: ChartFacts) -> str:
    """Return the options that tell ``kdp uninstall`` what the API server may still have of this plugin's nodes."""
    if deployment.cluster is not None:
        return f"--driver-name {deployment.cluster.driver}"
    taint = f"{{{{ with {_setting('startup-taint')} }}}} --startup-taint {{{{ . }}}}{{{{ end }}}}"
    return f"--resource {facts.resource or 'RESOURCE'}{taint}"


def _test(deployment: Deployment) -> str:
    if deployment.cluster is None:
        return _filled(texts.TEST, claim="", asks=texts.ASKS_RESOURCE)
    claim = _filled(texts.CLAIM, driver=deployment.cluster.driver)
    return _filled(texts.TEST, claim=claim, asks=texts.ASKS_CLAIM)


def _about(deployment: Deployment, facts: ChartFacts) -> Document:
    return {
        "apiVersion": "v2",
        "name": deployment.name,
        "description": facts.description,
        "type": "application",
        "version": facts.version,
        "appVersion": facts.app_version,
        "kubeVersion": ">=1.34.0-0",
    }
