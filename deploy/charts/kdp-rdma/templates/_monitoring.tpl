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
