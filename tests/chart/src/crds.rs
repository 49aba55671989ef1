//! The CustomResourceDefinitions of the chart.
//!
//! Each definition is a named template, because a helper decides between it and the definition that the cluster serves.

use std::fmt::Write as _;

use anyhow::Context as _;
use oarlock_api::{CRD_LEVEL, CRDS, FLOW_CRDS, OPS_CRDS};

use crate::document::{Document, documents};
use crate::{FLOWS, OPS};

/// A definition with its condition and its level.
struct Definition {
    document: Document,
    condition: &'static str,
    level: String,
}

fn all() -> anyhow::Result<Vec<Definition>> {
    let of = |texts: &[&str], condition: &'static str| -> anyhow::Result<Vec<Definition>> {
        let mut found = Vec::new();
        for document in texts.iter().map(|text| documents(text)).collect::<anyhow::Result<Vec<_>>>()?.concat() {
            let pointer = format!("/metadata/annotations/{}", CRD_LEVEL.replace('/', "~1"));
            let level = document.word(&pointer).with_context(|| format!("{} has no level", document.name))?.to_owned();
            found.push(Definition { document, condition, level });
        }
        Ok(found)
    };
    Ok([of(&CRDS, "true")?, of(&FLOW_CRDS, FLOWS)?, of(&OPS_CRDS, OPS)?].into_iter().flatten().collect())
}

/// Returns the named templates: one for each definition, and the list of all definitions that the values ask for.
pub(crate) fn templates() -> anyhow::Result<String> {
    let mut text = String::new();
    let mut list = String::new();
    for Definition { document, condition, level } in all()? {
        let own = format!("annotations: {{{CRD_LEVEL}: \"{level}\"}}");
        let kept = format!(
            "annotations: {{{CRD_LEVEL}: \"{level}\"{{{{ if $.Values.crds.keep }}}}, helm.sh/resource-policy: keep{{{{ end }}}}}}"
        );
        let body = document.body();
        anyhow::ensure!(body.contains(&own), "{} does not have its level on one line", document.name);
        let body = body.replacen(&own, &kept, 1);
        write!(text, "{{{{- define \"oarlock.crd.{}\" }}}}\n{body}\n{{{{- end }}}}\n", document.name)?;
        writeln!(list, "{{{{- if {condition} }}}}\n- {{name: {}, level: {level}}}\n{{{{- end }}}}", document.name)?;
    }
    Ok(format!("{text}{{{{- define \"oarlock.crds\" }}}}\n{list}{{{{- end }}}}\n"))
}

/// Returns the template that renders the definitions.
#[allow(clippy::unnecessary_wraps, reason = "all templates are made the same way")]
pub(crate) fn uses() -> anyhow::Result<String> {
    Ok("{{- if .Values.crds.enabled }}\n{{- range include \"oarlock.crds\" . | fromYamlArray }}\n---\n\
        {{ include \"oarlock.crd\" (dict \"root\" $ \"name\" .name \"level\" .level) }}\n{{- end }}\n{{- end }}\n"
        .to_owned())
}
