{{/* Labels of an object. The argument: the root, and the name of its role. */}}
{{- define "weir.labels" -}}
app.kubernetes.io/name: {{ .role }}
{{ include "weir.partOf" .root }}
{{- end }}

{{/* Labels of an object that belongs to no role. */}}
{{- define "weir.partOf" -}}
app.kubernetes.io/part-of: weir
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Labels of a pod: they stay the same from version to version, so that selectors do. */}}
{{- define "weir.podLabels" -}}
app.kubernetes.io/name: {{ .role }}
app.kubernetes.io/part-of: weir
{{- with .root.Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "weir.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The Service of the API. */}}
{{- define "weir.service" -}}
{{- if eq .Values.mode "embedded" }}weir{{ else }}weir-api{{ end }}
{{- end }}

{{/* The host of `publicUrl`. */}}
{{- define "weir.host" -}}
{{- $host := (urlParse .Values.publicUrl).hostname -}}
{{- required "ingress and gateway need publicUrl, such as https://hooks.example.com" $host -}}
{{- end }}

{{/*
The settings as variables of the pod. They are in the pod and not in a ConfigMap, so that a pod of the last version that starts again during an
upgrade has the settings of its own version.
*/}}
{{- define "weir.settings" -}}
{{- $service := include "weir.service" . -}}
{{- $namespace := .Release.Namespace -}}
{{- $hosts := list $service (printf "%s.%s" $service $namespace) (printf "%s.%s.svc" $service $namespace) (printf "%s.%s.svc.cluster.local" $service $namespace) -}}
{{- $settings := dict "WEIR_LISTEN" "0.0.0.0:8080" "WEIR_METRICS_LISTEN" "0.0.0.0:9464" "WEIR_HOSTS" (join "," (concat $hosts .Values.extraHosts)) "WEIR_SHUTDOWN_GRACE_S" "25" -}}
{{- if eq .Values.mode "embedded" }}{{ $_ := set $settings "WEIR_DATABASE_URL" "sqlite:///var/lib/weir/weir.db" }}{{ end -}}
{{- with .Values.publicUrl }}{{ $_ := set $settings "WEIR_PUBLIC_URL" . }}{{ end -}}
{{- with .Values.traces.endpoint }}{{ $_ := set $settings "OTEL_EXPORTER_OTLP_ENDPOINT" . }}{{ end -}}
{{- range $name, $value := mergeOverwrite $settings .Values.config }}
- name: {{ $name }}
  {{- /* A large number of a YAML file would be written as 3.3e+07. */}}
  value: {{ (kindIs "float64" $value) | ternary ($value | int64) $value | toString | quote }}
{{- end }}
{{- end }}

{{/* Variables from the Secret. The argument: the root, and the names. */}}
{{- define "weir.secrets" -}}
{{- $secret := .root.Values.secrets.name -}}
{{- range .names }}
- name: {{ . }}
  valueFrom: { secretKeyRef: { name: {{ $secret }}, key: {{ . }} } }
{{- end }}
{{- end }}

{{/* The keys of the secrets in the database, for what reads the database. A backup must not have them. */}}
{{- define "weir.encryption" -}}
- name: WEIR_ENCRYPTION_KEYS
  valueFrom: { secretKeyRef: { name: {{ .Values.secrets.name }}, key: WEIR_ENCRYPTION_KEYS, optional: true } }
{{- end }}

{{- define "weir.selectors" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}
