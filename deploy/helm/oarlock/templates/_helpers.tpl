{{- define "oarlock.chart" -}}
{{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "oarlock.image" -}}
{{ .Values.image.repository }}
{{- if or .Values.image.tag (not .Values.image.digest) }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "oarlock.replicas" -}}
{{ if kindIs "invalid" .Values.replicas }}{{ ternary 1 2 (ne .Values.data.claim "") }}{{ else }}{{ .Values.replicas }}{{ end }}
{{- end }}

{{- /* The resources of the host's container. `languages.python` raises the default limit, and keeps another one. */ -}}
{{- define "oarlock.resources" -}}
{{- if and .Values.languages.python (eq (dig "limits" "memory" "" .Values.resources | toString) "512Mi") -}}
{{ toJson (mergeOverwrite (deepCopy .Values.resources) (dict "limits" (dict "memory" "1Gi"))) }}
{{- else -}}
{{ toJson .Values.resources }}
{{- end }}
{{- end }}

{{- /* Not empty if the server is a container of the host's pod, because they share a volume. */ -}}
{{- define "oarlock.shares" -}}
{{ if and .Values.server.enabled .Values.data.claim }}true{{ end }}
{{- end }}

{{- define "oarlock.serverCertificate" -}}
{{ .Values.server.tls.secret }}
{{- end }}

{{- /* The rules of placement of a pod, as lines. */ -}}
{{- define "oarlock.placement" -}}
{{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.nodeSelector }}
      nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
      tolerations: {{ toJson . }}
{{- end }}
{{- with .Values.affinity }}
      affinity: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "oarlock.pluginsVolume" -}}
{{- with .Values.plugins.from }}
{{- if .configMap }}{name: plugins, configMap: {name: {{ .configMap }}}}
{{- else if .claim }}{name: plugins, persistentVolumeClaim: {claimName: {{ .claim }}, readOnly: true}}
{{- else if .image }}{name: plugins, image: {reference: {{ .image | quote }}}}
{{- end }}
{{- end }}
{{- end }}

{{- /* The arguments of the places for files and history, as lines. */ -}}
{{- define "oarlock.storeArguments" -}}
{{- with .Values.clusterId }}
        - --cluster-id={{ . }}
{{- end }}
{{- with .Values.data.bucket }}
        - {{ printf "--artefacts=%s" . | quote }}
{{- if $.Values.ca }}
        - --artefacts-ca=/etc/oarlock-ca/ca.crt
{{- end }}
{{- end }}
{{- end }}

{{- /* The arguments of the registry for exports, as lines. */ -}}
{{- define "oarlock.exportArguments" -}}
{{- with .Values.export }}
{{- if .registry }}
        - --export-registry={{ .registry }}
{{- with .secret }}
        - --export-secret={{ . }}
{{- end }}
{{- range .hosts }}
        - --export-host={{ . }}
{{- end }}
{{- if $.Values.ca }}
        - --export-ca=/etc/oarlock-ca/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "oarlock.tasksEgress" -}}
{{- $rules := list }}
{{- range .Values.tasks.egress }}
{{- $rules = append $rules (eq . "all" | ternary dict (dict "to" (list (dict "ipBlock" (dict "cidr" .))))) }}
{{- end }}
{{- toJson $rules }}
{{- end }}

{{- /* The documents of the value `grants`, as a list. */ -}}
{{- define "oarlock.grantDocuments" -}}
{{- $documents := list }}
{{- range regexSplit "(?m)^---[ \t]*$" (.Values.grants | replace "\r\n" "\n") -1 }}
{{- with fromYaml . }}
{{- if .Error }}{{ fail (printf "grants: the text is not YAML: %s; give the output of `oarlock manifests --grants FILE --only-grants` by --set-file grants=FILE" .Error) }}{{ end }}
{{- $documents = append $documents . }}
{{- end }}
{{- end }}
{{- toJson $documents }}
{{- end }}

{{- /* The file of grants: those of the shipped plugins, then those of the value `grants`. */ -}}
{{- define "oarlock.grantsText" -}}
{{- range include "oarlock.shipped" . | fromYamlArray }}
{{- $values := index $.Values.plugins .name }}
{{- if $values.enabled }}
{{- printf "---\n%s\n" (include (printf "oarlock.grant.%s" .name) $values) }}
{{- end }}
{{- end }}
{{- range include "oarlock.grantDocuments" . | fromJsonArray }}
{{- if eq .kind "ConfigMap" }}
{{- printf "---\n%s\n" (index .data "grants.yaml" | trim | trimPrefix "---" | trim) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "oarlock.grantsDigest" -}}
sha256:{{ include "oarlock.grantsText" . | trimAll "\n" | sha256sum }}
{{- end }}

{{- define "oarlock.grantsName" -}}
oarlock-grants-{{ include "oarlock.grantsText" . | trimAll "\n" | sha256sum | trunc 16 }}
{{- end }}

{{- /* Not empty if a grant has tasks on nodes. */ -}}
{{- define "oarlock.hasTasks" -}}
{{- range include "oarlock.shipped" . | fromYamlArray }}
{{- if and .tasks (index $.Values.plugins .name).enabled }}true{{ end }}
{{- end }}
{{- range include "oarlock.grantDocuments" . | fromJsonArray }}
{{- if and (eq .kind "Namespace") (eq .metadata.name "oarlock-tasks") }}true{{ end }}
{{- end }}
{{- end }}

{{- /* Not empty if a grant reaches nodes. */ -}}
{{- define "oarlock.changesNodes" -}}
{{- range include "oarlock.shipped" . | fromYamlArray }}
{{- if and .nodes (index $.Values.plugins .name).enabled }}true{{ end }}
{{- end }}
{{- range include "oarlock.grantDocuments" . | fromJsonArray }}
{{- if and (eq .kind "ValidatingAdmissionPolicy") (eq .metadata.name "node-holds.oarlock.dev") }}true{{ end }}
{{- end }}
{{- end }}

{{- /* The selector of the namespaces in which the host's account may patch pods. */ -}}
{{- define "oarlock.patchedNamespaces" -}}
{{- $names := list }}
{{- $all := false }}
{{- range include "oarlock.shipped" . | fromYamlArray }}
{{- $values := index $.Values.plugins .name }}
{{- if and .pods $values.enabled }}
{{- $names = concat $names $values.namespaces }}
{{- end }}
{{- end }}
{{- range include "oarlock.grantDocuments" . | fromJsonArray }}
{{- if and (eq .kind "ValidatingAdmissionPolicyBinding") (eq .metadata.name "pod-metadata.oarlock.dev") }}
{{- $expressions := dig "matchResources" "namespaceSelector" "matchExpressions" list .spec }}
{{- if $expressions }}
{{- $names = concat $names (index $expressions 0).values }}
{{- else }}
{{- $all = true }}
{{- end }}
{{- end }}
{{- end }}
{{- $key := "kubernetes.io/metadata.name" }}
{{- if or $all (has "*" $names) }}
{{- toJson dict }}
{{- else if $names }}
{{- toJson (dict "matchExpressions" (list (dict "key" $key "operator" "In" "values" ($names | uniq | sortAlpha)))) }}
{{- else }}
{{- toJson (dict "matchExpressions" (list (dict "key" $key "operator" "DoesNotExist"))) }}
{{- end }}
{{- end }}

{{- /* The level of the definition that the cluster serves: 0 if there is none, or if Helm cannot ask the cluster. */ -}}
{{- define "oarlock.servedLevel" -}}
{{- $served := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" . }}
{{- dig "metadata" "annotations" "oarlock.dev/crd-level" "0" ($served | default dict) }}
{{- end }}

{{- /* A definition: that of the chart, or the one that the cluster serves if its level is higher. */ -}}
{{- define "oarlock.crd" -}}
{{- if gt (include "oarlock.servedLevel" .name | int) (int .level) }}
{{- $served := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .name }}
{{- $annotations := omit $served.metadata.annotations "kubectl.kubernetes.io/last-applied-configuration" "helm.sh/resource-policy" }}
{{- if .root.Values.crds.keep }}
{{- $annotations = set $annotations "helm.sh/resource-policy" "keep" }}
{{- end }}
{{- $metadata := dict "name" .name "labels" $served.metadata.labels "annotations" $annotations }}
{{- toYaml (dict "apiVersion" $served.apiVersion "kind" $served.kind "metadata" $metadata "spec" $served.spec) }}
{{- else }}
{{- include (printf "oarlock.crd.%s" .name) .root }}
{{- end }}
{{- end }}
