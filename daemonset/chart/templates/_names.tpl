{{- define "labels" -}}
app.kubernetes.io/name: tensorfusion-dra
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

