"""The parts of a Helm chart for Prometheus's operator and for Grafana: monitors, alerts, and the dashboard.

All are off by default. `kdp.manifests.chart` puts them into a chart as they are.
"""

from __future__ import annotations

from typing import Final


def _metadata(value: str) -> str:
    """Return an object's metadata, with the labels of one of the chart's values."""
    return f"""\
metadata:
  name: {{{{ include "kdp.name" . }}}}
  namespace: {{{{ .Release.Namespace }}}}
  labels:
    app.kubernetes.io/name: {{{{ include "kdp.name" . }}}}
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
      app.kubernetes.io/name: {{{{ include "kdp.name" . }}}}
  {endpoints}:
  - port: http
    # The labels pod, namespace, and container are of the pod that holds a device, and not of the plugin's own.
    honorLabels: true
    interval: {{{{ .Values.{value}.interval }}}}
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
  name: {{ include "kdp.name" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    app.kubernetes.io/name: {{ include "kdp.name" . }}
    {{- include "kdp.labels" . | nindent 4 }}
spec:
  clusterIP: None
  # A pod that is not ready is the one to look at.
  publishNotReadyAddresses: true
  selector:
    app.kubernetes.io/name: {{ include "kdp.name" . }}
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
  namespace: {{ .Release.Namespace }}
  labels:
    app.kubernetes.io/name: {{ include "kdp.name" . }}
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
