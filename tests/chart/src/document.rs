//! One document as a template of Helm.

use anyhow::Context as _;
use serde_json::Value;

use crate::EACH;

/// Labels of Helm for the objects of a release.
const LABELS: [&str; 2] =
    ["helm.sh/chart: {{ include \"oarlock.chart\" $ }}", "app.kubernetes.io/instance: {{ $.Release.Name }}"];
/// Documents that stay in the cluster after `helm uninstall`: keys without which nobody can prove a hold, and the
/// namespace of jobs.
const KEPT: [(&str, &str); 2] = [("Secret", "oarlock-holds"), ("Secret", "oarlock-rest")];

/// A document as text, with its parsed content.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) text: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    content: Value,
}

/// Reads documents that `---` separates.
///
/// # Errors
///
/// If a document is not YAML, or has no kind or name.
pub(crate) fn documents(text: &str) -> anyhow::Result<Vec<Document>> {
    text.trim_start_matches("---\n").split("\n---\n").map(|text| Document::read(text.trim_end())).collect()
}

impl Document {
    fn read(text: &str) -> anyhow::Result<Self> {
        let content: Value = serde_saphyr::from_str(text).context("a document is not YAML")?;
        let word = |pointer: &str| content.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let kind = word("/kind").context("a document has no kind")?;
        let name = word("/metadata/name").context("a document has no name")?;
        Ok(Self { text: text.to_owned(), kind, name, content })
    }

    pub(crate) fn is_crd(&self) -> bool {
        self.kind == "CustomResourceDefinition"
    }

    pub(crate) fn is_policy(&self) -> bool {
        self.kind.starts_with("ValidatingAdmissionPolicy")
    }

    /// Returns the kind and the name, which tell the document from others.
    pub(crate) fn id(&self) -> (&str, &str) {
        (&self.kind, &self.name)
    }

    /// Returns the string at this pointer.
    pub(crate) fn word(&self, pointer: &str) -> Option<&str> {
        self.content.pointer(pointer).and_then(Value::as_str)
    }

    /// Returns the document as a template that renders if `condition` is true, or always if `condition` is empty.
    pub(crate) fn templated(&self, condition: &str) -> String {
        let body = self.body();
        if condition.is_empty() {
            return format!("---\n{body}\n");
        }
        format!("{{{{- if {condition} }}}}\n---\n{body}\n{{{{- end }}}}\n")
    }

    /// Returns the document as a template that renders once for each namespace of `list` if `condition` is true.
    pub(crate) fn in_each(&self, condition: &str, list: &str) -> String {
        let body = self.body().replace(EACH, "{{ $namespace }}");
        format!(
            "{{{{- if {condition} }}}}\n{{{{- range $namespace := {list} }}}}\n---\n{body}\n{{{{- end }}}}\n{{{{- end }}}}\n"
        )
    }

    /// Returns the text with expressions in place of the placeholders, and with the labels and annotations of Helm.
    pub(crate) fn body(&self) -> String {
        let mut text = self.labelled();
        if KEPT.contains(&(self.kind.as_str(), self.name.as_str())) {
            text = annotated(&text, "helm.sh/resource-policy: keep");
        }
        if self.kind == "Namespace" && self.name == "oarlock-ops" {
            text = annotated(&text, "{{ if $.Values.crds.keep }}helm.sh/resource-policy: keep{{ end }}");
        }
        filled(&text)
    }

    fn labelled(&self) -> String {
        let is_labelled = self.content.pointer("/metadata/labels").is_some();
        let flow = LABELS.join(", ");
        if !is_labelled {
            let named = format!("metadata: {{name: {}", self.name);
            let labels = format!("{named}, labels: {{{flow}, app.kubernetes.io/name: oarlock}}");
            return self.text.replacen(&named, &labels, 1);
        }
        let (in_flow, in_block) = (self.text.find("labels: {"), self.text.find("  labels:\n"));
        if in_flow.is_some_and(|at| in_block.is_none_or(|block| at < block)) {
            return self.text.replacen("labels: {", &format!("labels: {{{flow}, "), 1);
        }
        let lines: String = LABELS.iter().map(|label| format!("    {label}\n")).collect();
        self.text.replacen("  labels:\n", &format!("  labels:\n{lines}"), 1)
    }
}

/// Returns the text with an annotation of the object.
fn annotated(text: &str, annotation: &str) -> String {
    let flow = text.replacen("metadata: {name", &format!("metadata: {{annotations: {{ {annotation} }}, name"), 1);
    flow.replacen("metadata:\n", &format!("metadata:\n  annotations: {{ {annotation} }}\n"), 1)
}

/// Returns the text with the account and the namespace of the release.
pub(crate) fn filled(text: &str) -> String {
    text.replace("OARLOCK_NAMESPACE", "{{ $.Release.Namespace }}")
        .replace("OARLOCK_ACCOUNT", "{{ $.Values.serviceAccount.name }}")
}
