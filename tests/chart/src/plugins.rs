//! The shipped plugins: their grants, and the roles that the grants need.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Context as _;
use oarlock::manifests::{GrantedAccess, PodPolicies, manifests_with};
use oarlock_api::{NODE_ADMISSION, POD_ADMISSION};

use crate::document::{Document, documents};
use crate::{EACH, base, placeholders, root};

/// The plugins in the image.
const SHIPPED: [&str; 7] = ["addon", "dumplog", "exportimage", "preflight", "reboot", "replace", "restart"];

/// Returns the grant of a plugin, without its comments.
fn grant_text(plugin: &str) -> anyhow::Result<String> {
    let path = root().join("plugins").join(plugin).join("grant.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().filter(|line| !line.starts_with('#') && *line != "---");
    Ok(lines.map(|line| format!("{line}\n")).collect())
}

/// Returns the documents that a plugin adds, with its grant in these namespaces.
fn added(plugin: &str, namespaces: &str, base_ids: &BTreeSet<(&str, &str)>) -> anyhow::Result<Vec<Document>> {
    let text = grant_text(plugin)?.replace("namespaces: [\"*\"]", &format!("namespaces: [\"{namespaces}\"]"));
    let all = base(oarlock_wasm::parse_grants(&text)?)?;
    Ok(all.into_iter().filter(|document| !base_ids.contains(&document.id())).collect())
}

fn ids(documents: &[Document]) -> BTreeSet<(&str, &str)> {
    documents.iter().map(Document::id).collect()
}

/// Returns the named templates of the grants, and of the list of shipped plugins with what each of them reaches.
pub(crate) fn grants() -> anyhow::Result<String> {
    let (mut text, mut list) = (String::new(), String::new());
    for plugin in SHIPPED {
        let grant = grant_text(plugin)?;
        let granted = templated_grant(&grant);
        anyhow::ensure!(granted.matches("{{").count() >= 4, "the grant of {plugin} is not as expected");
        write!(text, "{{{{- define \"oarlock.grant.{plugin}\" -}}}}\n{granted}{{{{- end }}}}\n")?;
        let access = GrantedAccess::of(oarlock_wasm::parse_grants(&grant)?);
        let printed = documents(&manifests_with(&access, PodPolicies::USUAL)?)?;
        let has = |kind: &str, name: &str| printed.iter().any(|document| document.id() == (kind, name));
        let tasks = has("Namespace", "oarlock-tasks");
        let nodes = has("ValidatingAdmissionPolicy", "node-holds.oarlock.dev");
        let selector = printed
            .iter()
            .find(|document| document.id() == ("ValidatingAdmissionPolicyBinding", "pod-metadata.oarlock.dev"));
        let pods = selector.is_some_and(|document| document.text.contains("namespaceSelector: {}"));
        writeln!(list, "- {{name: {plugin}, tasks: {tasks}, nodes: {nodes}, pods: {pods}}}")?;
    }
    Ok(format!("{text}{{{{- define \"oarlock.shipped\" }}}}\n{list}{{{{- end }}}}\n"))
}

/// Returns a grant as a template of the plugin's values.
fn templated_grant(grant: &str) -> String {
    let directories =
        "{{ with .hostPaths }}{name: check-pod, hostPaths: {{ toJson . }}}{{ else }}{name: check-pod}{{ end }}";
    let mut text = String::new();
    for line in grant.lines() {
        let line = match line.trim_start() {
            "anyVersion: true" => "  {{ with .digest }}digest: {{ . }}{{ else }}anyVersion: true{{ end }}".to_owned(),
            "namespaces: [\"*\"]" => "  namespaces: {{ toJson .namespaces }}".to_owned(),
            "- {name: check-pod}" => format!("    - {directories}"),
            inner if inner.starts_with("registries: ") => "      registries: {{ toJson .registries }}".to_owned(),
            inner if inner.starts_with("authHosts: ") => "      authHosts: {{ toJson .authHosts }}".to_owned(),
            _ => line.to_owned(),
        };
        text += &line;
        text.push('\n');
    }
    text
}

/// Returns the template of the roles. A role for writes is bound in each granted namespace, or in the cluster.
pub(crate) fn roles(base: &[Document]) -> anyhow::Result<String> {
    let known = ids(base);
    let mut text = String::new();
    for plugin in SHIPPED {
        let (everywhere, in_each) = (added(plugin, "*", &known)?, added(plugin, EACH, &known)?);
        let values = format!(".Values.plugins.{plugin}");
        let enabled = format!("{values}.enabled");
        let in_cluster = format!("(has \"*\" {values}.namespaces)");
        let own = |document: &&Document| document.name.starts_with("oarlock-plugin-");
        for document in everywhere.iter().filter(own) {
            let only = document.kind == "ClusterRoleBinding" && !ids(&in_each).contains(&document.id());
            text += &document.templated(&if only { format!("and {enabled} {in_cluster}") } else { enabled.clone() });
        }
        for document in in_each.iter().filter(own).filter(|document| document.kind == "RoleBinding") {
            text += &document.in_each(&format!("and {enabled} (not {in_cluster})"), &format!("{values}.namespaces"));
        }
    }
    Ok(text)
}

/// Returns the template of the documents for tasks on nodes, and of the policies of pods and nodes.
pub(crate) fn tasks(base: &[Document]) -> anyhow::Result<String> {
    let known = ids(base);
    let all = added("reboot", "*", &known)?;
    let of_tasks = all.iter().filter(|document| document.text.contains("oarlock-tasks"));
    let mut text = String::new();
    for document in of_tasks {
        let mut document = document.clone();
        if document.kind == "NetworkPolicy" {
            anyhow::ensure!(document.text.contains("  egress: []"), "the bound of the network is not as expected");
            document.text = document.text.replace("  egress: []", "  egress: {{ include \"oarlock.tasksEgress\" $ }}");
        }
        text += &document.templated("include \"oarlock.hasTasks\" .");
    }
    let account = placeholders();
    for document in documents(&account.fill(POD_ADMISSION))? {
        let templated = document.templated(".Values.policies.guardPodWrites");
        text += &templated.replace("OARLOCK_GRANTED", "{{ include \"oarlock.patchedNamespaces\" $ }}");
    }
    for document in documents(&account.fill(oarlock_api::HOLD_ADMISSION))? {
        text += &document.templated(".Values.policies.guardHolds");
    }
    for document in documents(&account.fill(NODE_ADMISSION))? {
        text += &document.templated("include \"oarlock.changesNodes\" .");
    }
    Ok(text)
}
