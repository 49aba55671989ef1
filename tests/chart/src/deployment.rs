//! The Deployments of the host and of the server.
//!
//! `oarlock manifests` inserts arguments, variables, mounts and volumes after certain lines of its documents. The
//! template has the same insertions after the same lines, each with a condition. A test compares the results.

use anyhow::{Context as _, ensure};
use oarlock::manifests::export_role;

use crate::document::{Document, documents, filled};
use crate::placeholders;

const HOST: &str = include_str!("../../../host/manifests/deployment.yaml");
const SERVER: &str = include_str!("../../../host/manifests/server.yaml");
const CONTAINER: &str = include_str!("../../../host/manifests/server-container.yaml");
const TOKEN: &str = include_str!("../../../host/manifests/server-token.yaml");

/// The condition that the server is a container of the host's pod.
const SHARES: &str = "include \"oarlock.shares\" $";
const SERVER_ALONE: &str = "and .Values.server.enabled (not .Values.data.claim)";

/// Returns the text with `to` instead of the only `from`.
fn replaced(text: &str, from: &str, to: &str) -> anyhow::Result<String> {
    ensure!(text.matches(from).count() == 1, "a document has not exactly one {from:?}");
    Ok(text.replace(from, to))
}

/// Returns the text with `more` after the only `line`.
fn after(text: &str, line: &str, more: &str) -> anyhow::Result<String> {
    replaced(text, line, &format!("{line}{more}"))
}

/// Returns whole lines that render if `condition` is true.
fn when(condition: &str, lines: &str) -> String {
    format!("{{{{- if {condition} }}}}\n{lines}{{{{- end }}}}\n")
}

/// Returns the part of a text from `start` to before `end`.
fn part<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let from = text.find(start)?;
    let to = text.get(from..)?.find(end)?;
    text.get(from..from + to)
}

/// Inserts what the containers of host and server have in common. `server` has its own Secrets.
fn with_stores(text: &str, argument: &str, server: bool) -> anyhow::Result<String> {
    let data = when("$.Values.data.claim", "        - --data=/data\n");
    let arguments = "{{- include \"oarlock.storeArguments\" $ }}\n";
    let text = after(text, argument, &format!("{data}{arguments}"))?;
    let of_server = if server { "$.Values.server.dataSecret | default " } else { "" };
    let secret = format!(
        "{{{{- with {of_server}$.Values.data.secret }}}}\n        envFrom: [{{secretRef: {{name: {{{{ . }}}}}}}}]\n{{{{- end }}}}\n"
    );
    let text = replaced(&text, "        volumeMounts:\n", &format!("{secret}        volumeMounts:\n"))?;
    let of_server = if server { "$.Values.server.historySecret | default " } else { "" };
    let history = format!(
        "{{{{- with {of_server}$.Values.history.secret }}}}\n        - {{name: OARLOCK_HISTORY, valueFrom: {{secretKeyRef: {{name: {{{{ . }}}}, key: url}}}}}}\n{{{{- end }}}}\n"
    );
    let text = after(&text, "        env:\n", &history)?;
    let authorities =
        when("$.Values.ca", "        - {name: authorities, mountPath: /etc/oarlock-ca, readOnly: true}\n");
    let data = when("$.Values.data.claim", "        - {name: data, mountPath: /data}\n");
    let text = after(&text, "        volumeMounts:\n", &format!("{authorities}{data}"))?;
    let image = "        image: {{ include \"oarlock.image\" $ | quote }}\n{{- with $.Values.image.pullPolicy }}\n        imagePullPolicy: {{ . }}\n{{- end }}\n";
    replaced(&text, "        image: IMAGE\n", image)
}

/// Returns the lines of a container's resources.
fn resources(text: &str) -> anyhow::Result<&str> {
    let end = "        securityContext:\n          allowPrivilegeEscalation";
    part(text, "        resources:\n", end).context("a container has no resources")
}

/// Replaces the spread of a Deployment by that of the values, if they have one, and adds the other rules of placement.
fn with_placement(text: &str, start: &str, end: &str, values: &str) -> anyhow::Result<String> {
    let Some(own) = part(text, start, end) else { anyhow::bail!("a Deployment has no spread") };
    let rules = format!(
        "{{{{- if kindIs \"invalid\" $.Values.{values} }}}}\n{own}{{{{- else }}}}\n      topologySpreadConstraints: {{{{ toJson $.Values.{values} }}}}\n{{{{- end }}}}\n{{{{- include \"oarlock.placement\" $ }}}}\n"
    );
    replaced(text, own, &rules)
}

fn volumes_of_stores() -> String {
    when("$.Values.ca", "      - {name: authorities, configMap: {name: {{ $.Values.ca }}}}\n")
}

/// Returns the template of the host's Deployment and of the documents beside it.
pub(crate) fn host() -> anyhow::Result<String> {
    let mut text = String::new();
    for document in documents(HOST)? {
        match document.kind.as_str() {
            "Deployment" => text += &format!("---\n{}\n", host_deployment(&document)?),
            "PodDisruptionBudget" => text += &document.templated(".Values.podDisruptionBudget.enabled"),
            "NetworkPolicy" => text += &document.templated(".Values.networkPolicy.enabled"),
            "PriorityClass" => {
                let templated = document.templated("and .Values.priorityClass.create .Values.priorityClass.name");
                let named = replaced(&templated, "  name: oarlock\n", "  name: {{ .Values.priorityClass.name }}\n")?;
                text += &replaced(&named, "value: 1000000", "value: {{ .Values.priorityClass.value | int64 }}")?;
            }
            other => anyhow::bail!("the documents of the host have a {other}"),
        }
    }
    let export = export_role("OARLOCK_EXPORT", &placeholders())?;
    for document in documents(&export)? {
        text += &document.templated(".Values.export.secret").replace("OARLOCK_EXPORT", "{{ .Values.export.secret }}");
    }
    Ok(text)
}

fn host_deployment(document: &Document) -> anyhow::Result<String> {
    let text = host_pod(&document.body())?;
    let text = with_stores(&text, "        - --plugins=/plugins\n", false)?;
    let own = resources(&text)?.to_owned();
    let text = replaced(&text, &own, "        resources: {{ include \"oarlock.resources\" $ }}\n")?;
    let text = replaced(&text, "--grants-digest=DIGEST", "--grants-digest={{ include \"oarlock.grantsDigest\" $ }}")?;
    let text =
        replaced(&text, "configMap: {name: GRANTS}", "configMap: {name: {{ include \"oarlock.grantsName\" $ }}}")?;
    let text = replaced(&text, "value: IMAGE}", "value: {{ include \"oarlock.image\" $ | quote }}}")?;
    let more = "{{- include \"oarlock.exportArguments\" $ }}\n{{- range $.Values.extraArgs }}\n        - {{ . | quote }}\n{{- end }}\n";
    let text = after(&text, "        - --plugins=/plugins\n", more)?;
    let token = "        - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}\n";
    let plugins = "        - {name: plugins, mountPath: /plugins, readOnly: true}\n";
    let mounts = when(SHARES, token) + &when("include \"oarlock.pluginsVolume\" $", plugins);
    let text = after(&text, "        volumeMounts:\n", &mounts)?;
    let data = when(
        "$.Values.data.claim",
        "      - {name: data, persistentVolumeClaim: {claimName: {{ $.Values.data.claim }}}}\n",
    );
    let plugins = "{{- with include \"oarlock.pluginsVolume\" $ }}\n      - {{ . }}\n{{- end }}\n";
    let shared = "      - {name: token, projected: {defaultMode: 288, sources: [{serviceAccountToken: {path: token, expirationSeconds: 3607}}, \
                  {configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}}, \
                  {downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}}]}}\n      \
                  - {name: server-token, secret: {secretName: oarlock-server-token, defaultMode: 288}}\n      \
                  - {name: rest, secret: {secretName: {{ include \"oarlock.serverCertificate\" $ }}, defaultMode: 288}}\n";
    let volumes = [data, plugins.to_owned(), volumes_of_stores(), when(SHARES, shared)].concat();
    let container = when(SHARES, "{{- include \"oarlock.serverContainer\" $ }}\n");
    replaced(&text, "      volumes:\n", &format!("{container}      volumes:\n{volumes}"))
}

/// Inserts what concerns the pod, not its container.
fn host_pod(text: &str) -> anyhow::Result<String> {
    let replicas = format!(
        "  replicas: {{{{ include \"oarlock.replicas\" $ }}}}\n{}",
        when("$.Values.data.claim", "  strategy: {type: Recreate}\n")
    );
    let text = replaced(text, "  replicas: 2\n", &replicas)?;
    let labels = "      labels: {app.kubernetes.io/name: oarlock";
    let serves = format!("{labels}{{{{ if {SHARES} }}}}, oarlock.dev/serves: rest{{{{ end }}}}}}\n");
    let text = replaced(&text, &format!("{labels}}}\n"), &serves)?;
    let annotations = "safe-to-evict-local-volumes: scratch";
    let text = after(
        &text,
        annotations,
        "{{ range $name, $text := $.Values.podAnnotations }}, {{ $name | quote }}: {{ $text | quote }}{{ end }}",
    )?;
    let account = "      serviceAccountName: ";
    let before = when(SHARES, "      automountServiceAccountToken: false\n");
    let text = replaced(&text, account, &format!("{before}{account}"))?;
    let priority = "{{- with $.Values.priorityClass.name }}\n      priorityClassName: {{ . }}\n{{- end }}\n";
    let text = replaced(&text, "      priorityClassName: oarlock\n", priority)?;
    let text = with_placement(
        &text,
        "      # The scheduler spreads",
        "      # A leader that must stop",
        "topologySpreadConstraints",
    )?;
    after(&text, "        runAsNonRoot: true\n", &when("$.Values.data.claim", "        fsGroup: 65532\n"))
}

/// Returns the template of the server's Deployment, and of its token if it shares a pod with the host.
pub(crate) fn server() -> anyhow::Result<String> {
    let mut text = String::new();
    for document in documents(&SERVER.replace("CONTAINER\n", CONTAINER))? {
        if document.kind != "Deployment" {
            text += &document.templated(&format!("and ({SERVER_ALONE}) .Values.podDisruptionBudget.enabled"));
            continue;
        }
        let body = replaced(&document.body(), &filled(CONTAINER), "{{- include \"oarlock.serverContainer\" $ }}\n")?;
        let body = replaced(&body, "  replicas: 2\n", "  replicas: {{ $.Values.server.replicas }}\n")?;
        let body = with_placement(
            &body,
            "      topologySpreadConstraints:\n",
            "      # The server finishes",
            "server.topologySpreadConstraints",
        )?;
        let body =
            replaced(&body, "secretName: CERTIFICATE", "secretName: {{ include \"oarlock.serverCertificate\" $ }}")?;
        let body = after(&body, "      volumes:\n", &volumes_of_stores())?;
        text += &when(SERVER_ALONE, &format!("---\n{body}\n"));
    }
    for document in documents(TOKEN)? {
        text += &document.templated("include \"oarlock.shares\" .");
    }
    Ok(text)
}

/// Returns the named template of the server's container.
pub(crate) fn server_container() -> anyhow::Result<String> {
    let text = with_stores(&filled(CONTAINER), "        - server\n", true)?;
    let own = resources(&text)?.to_owned();
    let limit = "memory: {{ ternary \"1Gi\" \"768Mi\" $.Values.server.web.enabled }}}";
    let by_default = replaced(&own, "memory: 768Mi}", limit)?;
    let values = "        resources: {{ toJson $.Values.server.resources }}\n";
    let either = format!(
        "{{{{- if kindIs \"invalid\" $.Values.server.resources }}}}\n{by_default}{{{{- else }}}}\n{values}{{{{- end }}}}\n"
    );
    let text = replaced(&text, &own, &either)?;
    let more = when("$.Values.server.web.enabled", "        - --web\n")
        + &when("$.Values.server.web.logs", "        - --web-logs\n")
        + "{{- range $.Values.server.extraArgs }}\n        - {{ . | quote }}\n{{- end }}\n";
    let text = after(&text, "        - server\n", &more)?;
    let token =
        "        - {name: server-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}\n";
    let text = after(&text, "        volumeMounts:\n", &when("$.Values.data.claim", token))?;
    Ok(format!("{{{{- define \"oarlock.serverContainer\" }}}}\n{text}{{{{- end }}}}\n"))
}
