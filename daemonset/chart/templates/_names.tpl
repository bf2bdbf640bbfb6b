{{- define "selector" -}}
{{- /* No release: selectors cannot change, and the objects' fixed names allow one release for each cluster. */ -}}
app.kubernetes.io/name: tensorfusion-dra
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "labels" -}}
{{- /* Labels of an object, from a list of the root and the component. */}}
{{- $root := index . 0 }}
{{- $own := include "selector" (index . 1) | fromYaml }}
{{- $standard := dict
      "app.kubernetes.io/instance" $root.Release.Name
      "app.kubernetes.io/version" $root.Chart.AppVersion
      "app.kubernetes.io/managed-by" $root.Release.Service
      "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") }}
{{- merge $own $standard $root.Values.commonLabels | toYaml }}
{{- end }}

{{- define "pod-labels" -}}
{{- /* Labels of a pod, from a list of the root, the component and podLabels. They name no version, so a new version of the
       chart alone restarts no pod. */}}
{{- merge (include "selector" (index . 1) | fromYaml) (index . 2) (index . 0).Values.commonLabels | toYaml }}
{{- end }}

{{- define "cluster-role-binding" -}}
{{- /* Binding of a ClusterRole, from a list of the root, the role's name and the component whose ServiceAccount gets it. */ -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ index . 1 }}
  labels:
    {{- include "labels" (list (index . 0) (index . 2)) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ index . 1 }}
subjects:
- kind: ServiceAccount
  name: tensorfusion-dra-{{ index . 2 }}
  namespace: {{ (index . 0).Release.Namespace }}
{{- end }}

{{- define "policy-binding" -}}
{{- /* Binding of an admission policy, from a list of the root and the policy's name. */ -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ index . 1 }}
  labels:
    {{- include "labels" (list (index . 0) "node-plugin") | nindent 4 }}
spec:
  policyName: {{ index . 1 }}
  validationActions: [Deny]
{{- end }}

{{- define "share-classes" -}}
{{- /* Names of the DeviceClasses whose claims the webhook fills, as JSON. */ -}}
{{- prepend (concat (keys .Values.shareClasses | sortAlpha) .Values.webhook.classes) "partition.tensor-fusion.ai" | uniq | toJson }}
{{- end }}

{{- define "webhook-client" -}}
{{- /* How the API server calls the webhook, from a list of the root, the CA or "" if cert-manager fills it in, and the path. */ -}}
{{- with index . 1 -}}
caBundle: {{ . }}
{{ end -}}
service:
  namespace: {{ (index . 0).Release.Namespace }}
  name: tensorfusion-dra-webhook
  path: {{ index . 2 }}
  port: 443
{{- end }}

{{- define "image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "template-namespaces" -}}
{{- /* Namespaces that get the claim template: those of the values, and those with the label at this installation or upgrade. */ -}}
{{- $found := .Values.claimTemplate.namespaces }}
{{- range dig "items" list (lookup "v1" "Namespace" "" "") }}
{{- if eq "true" (dig "labels" "tensor-fusion.ai/claim-template" "" .metadata) }}
{{- $found = append $found .metadata.name }}
{{- end }}
{{- end }}
{{- $found | uniq | toJson }}
{{- end }}

{{- define "gpu-labels" -}}
{{- /* Labels of nodes with NVIDIA GPUs: of GPU Feature Discovery, and those of Node Feature Discovery. */ -}}
- nvidia.com/gpu.present
- feature.node.kubernetes.io/pci-10de.present
- feature.node.kubernetes.io/pci-0300_10de.present
- feature.node.kubernetes.io/pci-0302_10de.present
{{- end }}

{{- define "node-pod" -}}
{{- /* What the pods of all DaemonSets have in common. */ -}}
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
# Without the node plugin no pod with a share can start or end on a node.
priorityClassName: {{ .Values.nodePlugin.priorityClassName }}
# Shares have to be unprepared on tainted nodes as well.
tolerations:
  {{- toYaml .Values.nodePlugin.tolerations | nindent 2 }}
nodeSelector:
  {{- toYaml .Values.nodePlugin.nodeSelector | nindent 2 }}
{{- if .Values.nodePlugin.affinity }}
affinity:
  {{- toYaml .Values.nodePlugin.affinity | nindent 2 }}
{{- else if .Values.nvidia.enabled }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      # Nodes that NVIDIA's GPU Feature Discovery or Node Feature Discovery labels as having NVIDIA GPUs, in each form of
      # their labels.
      nodeSelectorTerms:
      {{- range include "gpu-labels" . | fromYamlArray }}
      - matchExpressions:
        - key: {{ . }}
          operator: In
          values: ["true"]
      {{- end }}
{{- end }}
{{- end }}

{{- define "require-definition" -}}
{{- /* Refuse to install in a cluster without a CustomResourceDefinition, from a list of the value that needs it, its name and
       the cure. Without a cluster (helm template) there is no Namespace kube-system, and nothing is refused. */}}
{{- $cluster := lookup "v1" "Namespace" "" "kube-system" }}
{{- if and $cluster (not (lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (index . 1))) }}
{{- printf "%s: found no CustomResourceDefinition %s in the cluster, expected it; %s" (index . 0) (index . 1) (index . 2) | fail }}
{{- end }}
{{- end }}

{{- define "driver-root" -}}
{{- /* By driver's root: which folder of the host is mounted where, and the root in there. */}}
{{- $root := .Values.nvidia.driverRoot }}
{{- $layouts := dict
      "/" (dict "folder" "/usr" "at" "/driver-root/usr" "root" "/driver-root")
      "/run/nvidia/driver" (dict "folder" "/run/nvidia" "at" "/driver-root" "root" "/driver-root/driver") }}
{{- $elsewhere := dict "folder" $root "at" "/driver-root" "root" "/driver-root" }}
{{- index $layouts $root | default $elsewhere | toJson }}
{{- end }}
