{{- define "gateway.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "gateway.fullname" -}}
{{- $name := include "gateway.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 57 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 57 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 57 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "gateway.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "gateway.serviceAccount" -}}
{{ .Values.serviceAccount.create | ternary (default (include "gateway.fullname" .) .Values.serviceAccount.name) (default "default" .Values.serviceAccount.name) }}
{{- end }}

{{- /* The engines as GATEWAY_BACKENDS takes them: URLs with commas, or JSON. */ -}}
{{- define "gateway.backends" -}}
{{- if eq .Values.mode "sidecar" -}}
http://127.0.0.1:{{ int .Values.sidecar.enginePort }}
{{- else if .Values.backends -}}
{{- if kindIs "string" (first .Values.backends) -}}
{{ join "," .Values.backends }}
{{- else -}}
{{ toJson .Values.backends }}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Whether engines are asked of the API server. */ -}}
{{- define "gateway.watches" -}}
{{- if and (eq .Values.mode "deployment") (eq .Values.discovery.mode "kubernetes") }}true{{ end }}
{{- end }}

{{- /* The Services of engines as GATEWAY_DISCOVER takes them. */ -}}
{{- define "gateway.discover" -}}
{{- $found := list -}}
{{- if and (eq .Values.mode "deployment") .Values.discovery.mode -}}
{{- range .Values.discovery.services -}}
{{- $place := printf "%s.%s" .name (default $.Release.Namespace .namespace) -}}
{{- if eq $.Values.discovery.mode "kubernetes" -}}
{{- $found = append $found (printf "k8s+%s://%s:%d" (default "http" .scheme) $place (int .port)) -}}
{{- else -}}
{{- $found = append $found (printf "dns+%s://%s.svc:%d" (default "http" .scheme) $place (int .port)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ join "," $found }}
{{- end }}

{{- /* Whether the admin port has TLS; a certificate that is named in `envFromSecret` cannot be seen here. */ -}}
{{- define "gateway.adminTls" -}}
{{- $found := .Values.settings.admin_tls_cert -}}
{{- range .Values.extraEnv -}}
{{- if eq .name "GATEWAY_ADMIN_TLS_CERT" }}{{ $found = true }}{{ end -}}
{{- end -}}
{{- if $found }}true{{ end }}
{{- end }}

{{- /* Whether several gateways share the engines. */ -}}
{{- define "gateway.shares" -}}
{{- if and (eq .Values.mode "deployment") (or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled) }}true{{ end }}
{{- end }}
