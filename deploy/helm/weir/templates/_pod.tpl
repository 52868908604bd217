{{/* What every pod has: no token, and the "restricted" Pod Security Standard. The argument: the user, and whether the pod has a disk. */}}
{{- define "weir.podSecurity" -}}
automountServiceAccountToken: false
# With service links, Kubernetes sets variables such as WEIR_API_PORT, and Weir refuses unknown WEIR_ variables.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user }}
  runAsGroup: {{ .user }}
  {{- if .disk }}
  fsGroup: {{ .user }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "weir.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{- define "weir.program" -}}
image: {{ include "weir.image" . }}
{{- if ne .Values.image.pullPolicy "IfNotPresent" }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}
{{- end }}

{{/* Ports and probes of a role. */}}
{{- define "weir.probes" -}}
ports:
  - { name: http, containerPort: 8080 }
  - { name: metrics, containerPort: 9464 }
# The first new process migrates the database before it answers, and the others wait for it. A kill would roll the migration back and start it
# again, so the process gets six hours. One that cannot start ends by itself.
startupProbe:
  httpGet: { path: /healthz, port: metrics }
  periodSeconds: 2
  failureThreshold: 10800
# A process that answers is alive. An outage of the store must not restart the pods.
livenessProbe:
  httpGet: { path: /healthz, port: metrics }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
# A process is ready while it reaches its store and the queue.
readinessProbe:
  httpGet: { path: /readyz, port: metrics }
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end }}

{{/* Load balancers need time to learn that a pod with the API ends. Until then it answers normally. */}}
{{- define "weir.preStop" -}}
lifecycle:
  preStop:
    sleep: { seconds: 10 }
{{- end }}

{{/* The Deployment of a role. The argument: the root, the role, its values, whether it is autoscaled, and the names of its secrets. */}}
{{- define "weir.deployment" -}}
{{- $name := printf "weir-%s" .role -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{ include "weir.labels" (dict "root" .root "role" $name) | nindent 4 }}
spec:
  {{- if not .autoscaled }}
  replicas: {{ .values.replicas }}
  {{- end }}
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ $name }}
  strategy:
    rollingUpdate:
      maxSurge: 25%
      maxUnavailable: 0
  template:
    metadata:
      labels: {{ include "weir.podLabels" (dict "root" .root "role" $name) | nindent 8 }}
      {{- with .root.Values.podAnnotations }}
      annotations: {{ toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: weir
      {{- include "weir.podSecurity" (dict "user" 65532) | nindent 6 }}
      # A shutdown takes at most 90 s; that of the API begins after the 10 s of its preStop hook.
      terminationGracePeriodSeconds: {{ if eq .role "api" }}110{{ else }}100{{ end }}
      {{- include "weir.selectors" .root | nindent 6 }}
      topologySpreadConstraints:
        {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
        - topologyKey: {{ . }}
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          labelSelector: { matchLabels: { app.kubernetes.io/name: {{ $name }} } }
          matchLabelKeys: [pod-template-hash]
        {{- end }}
      containers:
        - name: weir
          {{- include "weir.program" .root | nindent 10 }}
          args: [{{ .role }}]
          env:
            {{- include "weir.settings" .root | nindent 12 }}
            {{- include "weir.secrets" (dict "root" .root "names" .secrets) | nindent 12 }}
            {{- include "weir.encryption" .root | nindent 12 }}
          {{- include "weir.probes" . | nindent 10 }}
          {{- if eq .role "api" }}
          {{- include "weir.preStop" . | nindent 10 }}
          {{- end }}
          {{- include "weir.containerSecurity" . | nindent 10 }}
          resources: {{ toYaml .values.resources | nindent 12 }}
{{- end }}
