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
{{- if or (eq (include "kdp.setting" (list . "events")) "on") (eq (include "kdp.setting" (list . "on-unhealthy")) "evict") (include "kdp.setting" (list . "startup-taint")) }}true{{ end }}
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
{{- $default := ternary "127.0.0.1:18265" "" (eq .Values.probes "http") }}
{{- if not (has (include "kdp.setting" (list . "metrics")) (list "" "off")) }}
{{- $default = ":18265" }}
{{- end }}
{{- include "kdp.setting" (list . "http") | default $default }}
{{- end }}

{{- define "kdp.uninstall" -}}
- uninstall
- "rdma"
{{- include "kdp.parameter" (list . "mode") }}
{{- include "kdp.parameter" (list . "slots") }}
{{- include "kdp.parameter" (list . "config") }}
{{- include "kdp.parameter" (list . "resource") }}
{{- include "kdp.parameter" (list . "resource_prefix") }}
{{- include "kdp.parameter" (list . "rdma_hca_max") }}
{{- include "kdp.parameter" (list . "ports") }}
{{- include "kdp.parameter" (list . "vendors") }}
{{- include "kdp.parameter" (list . "device_ids") }}
{{- include "kdp.parameter" (list . "drivers") }}
{{- include "kdp.parameter" (list . "link_types") }}
{{- include "kdp.parameter" (list . "if_names") }}
{{- include "kdp.parameter" (list . "pf_names") }}
{{- include "kdp.parameter" (list . "is_rdma") }}
{{- include "kdp.parameter" (list . "shared") }}
{{- include "kdp.parameter" (list . "need_rdma_cm") }}
{{- include "kdp.flag" (list . "kubelet-root") }}
{{- include "kdp.flag" (list . "device-plugin-dir") }}
{{- include "kdp.flag" (list . "plugins-registry-dir") }}
{{- include "kdp.flag" (list . "cdi-dir") }}
{{- include "kdp.flag" (list . "state-dir") }}
{{- include "kdp.flag" (list . "labels-dir") }}
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
- name: pod-resources
  path: {{ include "kdp.setting" (list . "pod-resources-dir") | default (printf "%s/pod-resources" $root) | quote }}
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
{{- if eq (include "kdp.setting" (list . "labels")) "nfd" }}
- name: labels
  path: {{ include "kdp.setting" (list . "labels-dir") | default "/etc/kubernetes/node-feature-discovery/features.d" | quote }}
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
{{- end }}
{{- end }}
