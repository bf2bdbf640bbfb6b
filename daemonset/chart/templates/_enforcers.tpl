{{- /* Enforcers, as they declare themselves in tensorfusion_dra/enforcers. Nothing here names one. */}}
{{- define "declared" -}}
{{- .Files.Get "declared.yaml" }}
{{- end }}

{{- define "enforcer" -}}
{{- /* The enforcer that is named; auto if nodes choose; of simulated GPUs the one whose specs claims get. */ -}}
{{- $named := .Values.settings.enforcer | default "auto" }}
{{- if and (eq $named "auto") (index .Values.settings "simulated-gpus") }}
{{- (include "declared" . | fromYaml).simulated }}
{{- else if contains "," $named }}auto{{ else }}{{ $named }}{{ end }}
{{- end }}

{{- define "enforcers" -}}
{{- /* Every enforcer that may get a node's claims, with commas. */ -}}
{{- $declared := include "declared" . | fromYaml }}
{{- $several := index .Values.settings "simulated-gpus" | empty | ternary $declared.auto (list $declared.simulated) }}
{{- $every := list }}
{{- range splitList "," (.Values.settings.enforcer | default (include "enforcer" .)) }}
{{- $every = eq . "auto" | ternary $several (list .) | concat $every }}
{{- end }}
{{- eq (include "enforcer" .) "auto" | ternary $every (include "enforcer" . | list) | uniq | join "," }}
{{- end }}

{{- define "settings" -}}
{{- /* The node plugin's settings: those of the values, then those that follow from other values. */}}
{{- $own := dict }}
{{- $enforcers := (include "declared" . | fromYaml).enforcers }}
{{- if and .Values.webhook.enabled (not (dig (include "enforcer" .) "readsPods" true $enforcers)) }}
{{- $_ := set $own "read-pods" false }}
{{- end }}
{{- range $enforcers }}
{{- with .settings }}
{{- $own = include . $ | fromYaml | merge $own }}
{{- end }}
{{- end }}
{{- if not (hasKey .Values.settings "metrics-address") }}
{{- $_ := set $own "metrics-address" ":8081" }}
{{- end }}
{{- merge (dict) .Values.settings $own | toYaml }}
{{- end }}

{{- define "enforcer-pods" -}}
{{- /* What the node plugin's pod has for enforcers, as JSON by name. What an enforcer may declare (Declaration.pod):
         folder: a folder of the host, with the name of its volume, its type (DirectoryOrCreate if it says none), and about, a comment.
           setting: the setting that names it, or a file in it (isOfFile); what the values set is always mounted.
           default: the folder without the setting. It is not mounted if its key mounted is named, but the node chooses among
             several enforcers, or if it is chosen, but the enforcer is named.
           grows: something may be mounted below it while the pod runs.
         written: a folder below /run/tensor-fusion that containers write to.
         container: the template of a container, and of its volumes with the ending -volumes.
         address: the setting that gets the node's address, and the port, if the folder is mounted.
         marksPods: with the folder, the node plugin marks pods.
         settings: a template with settings that follow from the chart's values.
         installs: what the value install=true of the enforcer brings, for the notes. */}}
{{- $isAuto := eq (include "enforcer" .) "auto" }}
{{- $settings := include "settings" . | fromYaml }}
{{- $declared := (include "declared" . | fromYaml).enforcers }}
{{- $used := include "enforcers" . | splitList "," }}
{{- $found := dict }}
{{- range $name := $used }}
{{- /* One of another package has a folder for its claims. */}}
{{- $own := dict "written" (printf "%s/claims" $name) }}
{{- if hasKey $declared $name }}
{{- $own = index $declared $name }}
{{- end }}
{{- with $own.folder }}
{{- $set := index $settings .setting | default "" }}
{{- $default := .default | replace "{kubelet-root}" $.Values.kubeletRoot }}
{{- $isUsual := eq .mounted "named" | ternary (not $isAuto) (eq .mounted "chosen" | ternary $isAuto true) }}
{{- $path := $isUsual | ternary $default "" }}
{{- if $set }}
{{- $path = .isOfFile | ternary (dir $set) $set }}
{{- end }}
{{- $_ := set . "path" $path }}
{{- end }}
{{- $_ := set $found $name $own }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{- define "enforcer-containers" -}}
{{- /* Templates of the containers beside the node plugin: of enforcers that the chart installs, or that are named. */}}
{{- $found := list }}
{{- range $name, $own := (include "declared" . | fromYaml).enforcers }}
{{- $isInstalled := dig ($name | camelcase | untitle) "install" false $.Values.enforcers }}
{{- if and $own.container $.Values.nvidia.enabled (or $isInstalled (eq (include "enforcer" $) $name)) }}
{{- $found = append $found $own.container }}
{{- end }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{- define "marks-pods" -}}
{{- /* "true" if the node plugin marks pods for an enforcer, or "". */}}
{{- range include "enforcer-pods" . | fromJson }}
{{- if and .marksPods .folder.path }}true{{ end }}
{{- end }}
{{- end }}
