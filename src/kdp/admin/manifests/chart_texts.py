"""The parts of a Helm chart that are the same for each plugin: helpers, notes, the test of a release, and monitoring.

What differs stands between ``@`` signs. `kdp.admin.manifests.chart` writes the rest. What is for Prometheus's operator
and for Grafana is off by default: monitors, alerts, and the dashboard.
"""

from __future__ import annotations

from typing import Final

HELPERS: Final = """\
{{- /* The name of all objects: the release's, with the chart's unless it is part of that. */}}
{{- define "kdp.name" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "kdp.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- end }}

{{- define "kdp.image" -}}
{{- .Values.image.repository }}
{{- with .Values.image.tag | default .Chart.AppVersion }}:{{ . }}{{ end }}
{{- with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* A setting as text, by its name: a bare on or off is a bool to YAML. Empty: it was not given. */}}
{{- define "kdp.setting" -}}
{{- $value := get (index . 0).Values.config (index . 1) }}
{{- if kindIs "bool" $value }}{{ ternary "on" "off" $value }}
{{- else if kindIs "string" $value }}{{ $value }}
{{- else if not (kindIs "invalid" $value) }}{{ toJson $value }}
{{- end }}
{{- end }}

{{- /* Arguments: Kubernetes takes $(NAME) for a variable. */}}
{{- define "kdp.flag" -}}
{{- $value := include "kdp.setting" . }}
{{- if $value }}
- {{ printf "--%s=%s" (index . 1) $value | replace "$" "$$" | quote }}
{{- end }}
{{- end }}

{{- define "kdp.parameter" -}}
{{- $value := index ((index . 0).Values.config.set | default dict) (index . 1) }}
{{- if not (kindIs "invalid" $value) }}
{{- $text := ternary $value (toJson $value) (kindIs "string" $value) }}
- {{ printf "--set=%s=%s" (index . 1) $text | replace "$" "$$" | quote }}
{{- end }}
{{- end }}

{{- /* Whether it asks the API server for something: true, or empty. */}}
{{- define "kdp.account" -}}
@account@
{{- end }}

{{- define "kdp.account-name" -}}
{{- $name := .Values.serviceAccount.name | default (include "kdp.name" .) }}
{{- /* It stands within expressions of policies. */}}
{{- if not (regexMatch "^[-.a-z0-9]+$" $name) }}
{{- fail "serviceAccount.name: must be the name of an account; for example 'widgets'" }}
{{- end }}
{{- $name }}
{{- end }}

{{- define "kdp.http" -}}
{{- $default := ternary "@http@" "" (eq .Values.probes "http") }}
{{- if not (has (include "kdp.setting" (list . "metrics")) (list "" "off")) }}
{{- $default = "@metrics@" }}
{{- end }}
{{- include "kdp.setting" (list . "http") | default $default }}
{{- end }}

{{- define "kdp.uninstall" -}}
@uninstall@
{{- end }}

{{- /* How a directory is mounted that is only read. */}}
{{- define "kdp.readOnly" -}}
readOnly: true
{{- if eq .Values.mountPropagation "none" }}
recursiveReadOnly: IfPossible
{{- else }}
mountPropagation: HostToContainer
{{- end }}
{{- end }}

{{- /* The directories that kdp itself needs under these settings. */}}
{{- define "kdp.folders" -}}
{{- $root := include "kdp.setting" (list . "kubelet-root") | default "/var/lib/kubelet" | trimSuffix "/" }}
@folders@
{{- end }}
"""

TOLERATIONS: Final = """\
{{- $tolerations := .Values.tolerations | default list }}
{{- with include "kdp.setting" (list . "startup-taint") }}
{{- /* Only the pods remove it, so it must not keep them away. */}}
{{- $any := dict "operator" "Exists" }}
{{- $own := dict "key" . "operator" "Exists" }}
{{- if not (or (has $any $tolerations) (has $own $tolerations)) }}
{{- $tolerations = append $tolerations $own }}
{{- end }}
{{- end }}
{{- with $tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}"""

_POD_RESOURCES: Final = """\
- name: pod-resources
  path: {{ include "kdp.setting" (list . "pod-resources-dir") | default (printf "%s/pod-resources" $root) | quote }}
"""

_LABELS_AND_STATE: Final = """\
{{- if eq (include "kdp.setting" (list . "labels")) "nfd" }}
- name: labels
  path: {{ include "kdp.setting" (list . "labels-dir") | default "@labels@" | quote }}
  writable: true
  made: true
{{- end }}
{{- with include "kdp.setting" (list . "state-dir") | default "/var/lib/kdp" }}
{{- if ne . "none" }}
- name: state
  path: {{ . | quote }}
  writable: true
  made: true
{{- end }}
{{- end }}"""

CLEANED: Final = """\
{{- if .Values.cleanup }}
{{- /* A directory that is mounted itself cannot be removed. */}}
- name: plugins
  path: {{ printf "%s/plugins" $root | quote }}
  writable: true
{{- else }}
- name: driver
  path: {{ printf "%s/plugins/@driver@" $root | quote }}
  @writable@made: true
{{- end }}
"""

CLAIMS: Final = CLEANED.replace("@writable@", "")

_REPLACED: Final = """\
{{- with include "kdp.setting" (list . "replaces") }}
- name: replaced
  {{- $parts := splitList "/" . }}
  path: {{ printf "%s/plugins/%s.%s" $root (last $parts | lower | replace "_" "-") (first $parts) | quote }}
  made: true
{{- end }}
"""

PLUGIN_FOLDERS: Final = (
    """\
{{- if eq (include "kdp.setting" (list . "registration")) "watcher" }}
- name: registry
  {{- $registry := printf "%s/plugins_registry" $root }}
  path: {{ include "kdp.setting" (list . "plugins-registry-dir") | default $registry | quote }}
  writable: true
{{- else }}
- name: device-plugins
  path: {{ include "kdp.setting" (list . "device-plugin-dir") | default "/var/lib/kubelet/device-plugins" | quote }}
  writable: true
{{- end }}
"""
    + _POD_RESOURCES
    + "@claims@"
    + """\
{{- with include "kdp.setting" (list . "pods-api-dir") }}
- name: pods-api
  path: {{ . | quote }}
{{- end }}
{{- if not (has (include "kdp.setting" (list . "cdi")) (list "" "off")) }}
- name: cdi
  path: {{ include "kdp.setting" (list . "cdi-dir") | default "/var/run/cdi" | quote }}
  writable: true
  made: true
{{- end }}
"""
    + _LABELS_AND_STATE
)

_DRIVER_FOLDERS: Final = (
    """\
- name: registry
  {{- $registry := printf "%s/plugins_registry" $root }}
  path: {{ include "kdp.setting" (list . "plugins-registry-dir") | default $registry | quote }}
  writable: true
"""
    + CLEANED.replace("@writable@", "writable: true\n  ")
    + """\
- name: cdi
  path: {{ include "kdp.setting" (list . "cdi-dir") | default "/var/run/cdi" | quote }}
  writable: true
  made: true
"""
)

DRIVER_FOLDERS: Final = _DRIVER_FOLDERS + _POD_RESOURCES + _REPLACED + _LABELS_AND_STATE

POOL_FOLDERS: Final = (
    _DRIVER_FOLDERS
    + """\
{{- if eq (include "kdp.setting" (list . "metrics")) "pods" }}
"""
    + _POD_RESOURCES
    + """\
{{- end }}
"""
    + _LABELS_AND_STATE
)

PROBES: Final = """\
{{- with include "kdp.http" . }}
ports:
- name: http
  containerPort: {{ regexFind "[0-9]+$" . }}
{{- end }}
{{- if eq .Values.probes "exec" }}
@exec@{{- else }}
{{- $host := regexReplaceAll ":[0-9]+$" (include "kdp.http" .) "" | trimAll "[]" }}
{{- if has $host (list "0.0.0.0" "::") }}{{- $host = "" }}{{- end }}
@http@{{- end }}"""

HTTP_GET: Final = """\
  httpGet:
    path: @path@
    port: http
    {{- with $host }}
    host: {{ . | quote }}
    {{- end }}
"""

CLEANING: Final = """\
{{- if .Values.cleanup }}
{{- include "kdp.uninstall" . | nindent 0 }}
- --stay
{{- else }}"""

CLEANING_PROBES: Final = f"""\
{{{{- if .Values.cleanup }}}}
readinessProbe:
  exec:
    command:
    - kdp
    {{{{- include "kdp.uninstall" . | nindent 4 }}}}
    - --dry-run
  timeoutSeconds: 10
  periodSeconds: 5
{{{{- else }}}}
{PROBES}
{{{{- end }}}}"""

TEST: Final = """\
{{- /* `helm test`: a pod that asks for one device, and can only start if it gets one. */}}
{{- if .Values.test.enabled }}
@claim@apiVersion: v1
kind: Pod
metadata:
  name: {{ include "kdp.name" . | trunc 58 }}-test
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- include "kdp.labels" . | nindent 4 }}
  annotations:
    helm.sh/hook: test
    helm.sh/hook-delete-policy: before-hook-creation
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  {{- with .Values.pullSecrets }}
  imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
  - name: test
    image: {{ include "kdp.image" . | quote }}
    {{- with .Values.image.pullPolicy }}
    imagePullPolicy: {{ . | quote }}
    {{- end }}
    command: [kdp, --version]
    resources:
@asks@
{{- end }}
"""

ASKS_RESOURCE: Final = """\
      {{- $resource := required "test.resource: must be a resource, as example.com/widget" .Values.test.resource }}
      {{- toYaml (merge (dict "limits" (dict $resource 1)) .Values.test.resources) | nindent 6 }}"""

CLAIM: Final = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: {{ include "kdp.name" . | trunc 58 }}-test
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- include "kdp.labels" . | nindent 4 }}
  annotations:
    helm.sh/hook: test
    helm.sh/hook-weight: "-1"
    helm.sh/hook-delete-policy: before-hook-creation
spec:
  spec:
    devices:
      requests:
      - name: device
        exactly:
          deviceClassName: @driver@
---
"""

ASKS_CLAIM: Final = """\
      {{- toYaml (merge (dict "claims" (list (dict "name" "device"))) .Values.test.resources) | nindent 6 }}
  resourceClaims:
  - name: device
    resourceClaimTemplateName: {{ include "kdp.name" . | trunc 58 }}-test"""

NOTES: Final = """\
{{- if .Values.cleanup }}
The pods of {{ include "kdp.name" . }} remove what it has left on its nodes. When all are ready, uninstall the release:

  kubectl -n {{ .Release.Namespace }} rollout status @workload@/{{ include "kdp.name" . }}
  helm -n {{ .Release.Namespace }} uninstall {{ .Release.Name }}

The pods get no right to change more than that. As the cluster's administrator, remove what the API server still has of
it, five minutes later, when the kubelets have forgotten the plugin:

  kdp uninstall --nodes all @named@
{{- else }}
{{ include "kdp.name" . }} serves the devices of its nodes as @what@.

Its pods need a namespace that allows the Pod Security level @level@ (@why@).
{{- if or .Values.affinity (gt (len (.Values.nodeSelector | default dict)) 1) }}
They run only on nodes whose labels fit nodeSelector and affinity. Other nodes get no pod. Look at the labels with

  kubectl get nodes --show-labels

To run on all nodes, install with --set affinity=null --set nodeSelector=null.
{{- end }}

Wait until all are ready, and see what they serve:

  kubectl -n {{ .Release.Namespace }} rollout status @workload@/{{ include "kdp.name" . }}
  kubectl -n {{ .Release.Namespace }} exec @workload@/{{ include "kdp.name" . }} -- kdp status

If something is wrong:

  kubectl -n {{ .Release.Namespace }} exec @workload@/{{ include "kdp.name" . }} -- kdp doctor
{{- if .Values.test.enabled }}

Have a pod use one device:

  helm -n {{ .Release.Namespace }} test {{ .Release.Name }}
{{- end }}
{{- $measures := not (has (include "kdp.setting" (list . "metrics")) (list "" "off")) }}
{{- if and $measures .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsFrom) }}

The NetworkPolicy keeps Prometheus from the metrics: set networkPolicy.metricsFrom to its namespace.
{{- end }}
{{- end }}
"""

IGNORED: Final = """\
.git/
*.tgz
*.orig
*~
"""


def _metadata(value: str) -> str:
    """Return an object's metadata, with the labels of one of the chart's values."""
    return f"""\
metadata:
  name: {{{{ include "kdp.name" . | quote }}}}
  namespace: {{{{ .Release.Namespace | quote }}}}
  labels:
    app.kubernetes.io/name: {{{{ include "kdp.name" . | quote }}}}
    {{{{- include "kdp.labels" . | nindent 4 }}}}
    {{{{- with .Values.{value}.labels }}}}
    {{{{- toYaml . | nindent 4 }}}}
    {{{{- end }}}}
"""


def _monitor(value: str, endpoints: str) -> str:
    """Return the end of a monitor, which finds what has the chart's name."""
    return f"""\
{_metadata(value)}spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: {{{{ include "kdp.name" . | quote }}}}
  {endpoints}:
  - port: http
    # The labels pod, namespace, and container are of the pod that holds a device, and not of the plugin's own.
    honorLabels: true
    interval: {{{{ .Values.{value}.interval | quote }}}}
    {{{{- with .Values.{value}.relabelings }}}}
    relabelings:
    {{{{- toYaml . | nindent 4 }}}}
    {{{{- end }}}}
{{{{- end }}}}
"""


SCRAPED: Final = """\
{{- /* What Prometheus's operator is told of is there, and only once; by the name of the value. */}}
{{- define "kdp.scraped" -}}
{{- $name := index . 1 }}
{{- with index . 0 }}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled }}
{{- fail "serviceMonitor.enabled: podMonitor.enabled is on, too, so each pod would be scraped twice; choose one" }}
{{- end }}
{{- if has (include "kdp.setting" (list . "metrics")) (list "" "off") }}
{{- fail (printf "%s.enabled: there is nothing to scrape; set config.metrics to on or pods" $name) }}
{{- end }}
{{- $http := include "kdp.http" . }}
{{- if or (not $http) (hasPrefix "127." $http) (hasPrefix "[::1]" $http) (hasPrefix "localhost:" $http) }}
{{- fail (printf "%s.enabled: only the node itself reaches the port %q; set config.http, as :9400" $name $http) }}
{{- end }}
{{- end }}
{{- end }}
"""

POD_MONITOR: Final = """\
{{- if .Values.podMonitor.enabled }}
{{- include "kdp.scraped" (list . "podMonitor") }}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
""" + _monitor("podMonitor", "podMetricsEndpoints")

SERVICE_MONITOR: Final = """\
{{- if .Values.serviceMonitor.enabled }}
{{- include "kdp.scraped" (list . "serviceMonitor") }}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "kdp.name" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels:
    app.kubernetes.io/name: {{ include "kdp.name" . | quote }}
    {{- include "kdp.labels" . | nindent 4 }}
spec:
  clusterIP: None
  # A pod that is not ready is the one to look at.
  publishNotReadyAddresses: true
  selector:
    app.kubernetes.io/name: {{ include "kdp.name" . | quote }}
  ports:
  - name: http
    port: {{ include "kdp.http" . | regexFind "[0-9]+$" }}
    targetPort: http
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
""" + _monitor("serviceMonitor", "endpoints")

DASHBOARD: Final = """\
{{- if .Values.dashboard.enabled }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "kdp.name" . | trunc 53 | trimSuffix "-" }}-dashboard
  namespace: {{ .Release.Namespace | quote }}
  labels:
    app.kubernetes.io/name: {{ include "kdp.name" . | quote }}
    {{- include "kdp.labels" . | nindent 4 }}
    {{- with .Values.dashboard.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.dashboard.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
data:
  kdp.json: |
    {{- .Files.Get "files/dashboard.json" | trim | nindent 4 }}
{{- end }}
"""

PROMETHEUS_RULE: Final = (
    """\
{{- if .Values.rules.enabled }}
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
"""
    + _metadata("rules")
    + """\
spec:
  {{- .Files.Get "files/rules.yaml" | trim | nindent 2 }}
{{- end }}
"""
)
