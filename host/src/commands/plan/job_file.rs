//! The job of a plan: reads it from a file as strictly as kubectl does, and adds the fields that the API server would
//! set.

use std::path::Path;

use anyhow::{Context as _, bail};
use oarlock_api::{OPERATION_JOB_API_VERSION, OperationJob};
use oarlock_core::object::key::is_object_name;
use oarlock_core::operation_job::spec::asked_kind;
use oarlock_core::plugin::manifest::TargetKind;
use serde_json::Value;

use super::made_up;
use crate::commands::text_file;

/// The job of a plan, in its namespace.
pub(super) struct PlannedJob {
    job: OperationJob,
}

/// Reads the single job of a file; `-` is standard input.
pub(super) fn read(path: &Path) -> anyhow::Result<OperationJob> {
    let shown = text_file::shown(path);
    let text = text_file::text_of(path).with_context(|| format!("cannot read the job from {shown}"))?;
    parse(&text).with_context(|| format!("cannot plan {shown}"))
}

fn parse(text: &str) -> anyhow::Result<OperationJob> {
    let mut documents = text_file::documents(text)?;
    let count = documents.len();
    let document = match documents.pop() {
        Some(document) if count == 1 => document,
        None => bail!("it is empty: write one OperationJob; `oarlock run ACTION -l LABELS --print` prints one"),
        Some(_) => bail!("it holds {count} documents: a plan is of one job, so put each into a file of its own"),
    };
    let word = |field: &str| document.get(field).and_then(Value::as_str).unwrap_or("none");
    let (api_version, kind) = (word("apiVersion").to_owned(), word("kind").to_owned());
    if (api_version.as_str(), kind.as_str()) != (OPERATION_JOB_API_VERSION, "OperationJob") {
        bail!("it is no OperationJob of {OPERATION_JOB_API_VERSION}: apiVersion is {api_version}, kind is {kind}");
    }
    let job: OperationJob = serde_json::from_value(document.clone()).context("a field is not of its type")?;
    let known = serde_json::to_value(&job).context("it cannot be written as JSON")?;
    if let Some(field) = unknown_field(document.get("spec"), known.get("spec"), "spec") {
        bail!("{field}: an OperationJob has no such field; `kubectl explain opj.spec` lists them");
    }
    Ok(job)
}

/// Returns the path of the first unknown field. Skips the parameters, which only the plugin knows, and nulls.
fn unknown_field(given: Option<&Value>, known: Option<&Value>, at: &str) -> Option<String> {
    match (given?, known) {
        (Value::Null, _) => None,
        _ if at == "spec.parameters" => None,
        (Value::Object(given), known) => given.iter().find_map(|(name, value)| {
            let known = known.and_then(|known| known.get(name));
            let at = format!("{at}.{name}");
            let is_empty = || value.as_object().is_some_and(serde_json::Map::is_empty);
            match known {
                None if value.is_null() || is_empty() => None,
                None => Some(at),
                Some(_) => unknown_field(Some(value), known, &at),
            }
        }),
        (Value::Array(given), known) => given.iter().enumerate().find_map(|(index, value)| {
            unknown_field(Some(value), known.and_then(|known| known.get(index)), &format!("{at}[{index}]"))
        }),
        _ => None,
    }
}

/// Sets the namespace of the job: that of the file, else `named`, else that of the context.
pub(super) fn placed(mut job: OperationJob, named: Option<&str>, of_context: &str) -> anyhow::Result<PlannedJob> {
    let own = job.metadata.namespace.take().filter(|own| !own.is_empty());
    if let (Some(own), Some(named)) = (&own, named)
        && own != named
    {
        bail!("the job is in namespace {own}, and -n says {named}: leave -n out, or change the file");
    }
    job.metadata.namespace = Some(own.unwrap_or_else(|| named.unwrap_or(of_context).to_owned()));
    let name = job.metadata.name.clone().unwrap_or_default();
    let prefix = job.metadata.generate_name.clone().unwrap_or_default();
    if name.is_empty() && prefix.is_empty() {
        bail!("the job has no name: give it metadata.name or metadata.generateName");
    }
    if !name.is_empty() && !is_object_name(&name) {
        bail!("metadata.name: {name:?} is no name: write small letters, digits, `-` and `.`");
    }
    Ok(PlannedJob { job })
}

impl PlannedJob {
    pub(super) fn namespace(&self) -> &str {
        self.job.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Returns the name; empty if the cluster would choose it.
    pub(super) fn name(&self) -> &str {
        self.job.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the prefix of a name whose end the cluster would choose.
    pub(super) fn prefix(&self) -> Option<&str> {
        self.job.metadata.generate_name.as_deref().filter(|_| self.name().is_empty())
    }

    /// Returns the kind of the job's targets.
    pub(super) fn kind(&self) -> TargetKind {
        asked_kind(self.job.spec.as_ref())
    }

    pub(super) fn action(&self) -> &str {
        oarlock_core::operation_job::round::context::action(&self.job)
    }

    /// Returns the job as the user would create it.
    pub(super) fn written(&self) -> OperationJob {
        let mut job = self.job.clone();
        let meta = &mut job.metadata;
        (meta.uid, meta.resource_version, meta.creation_timestamp, meta.generation) = (None, None, None, None);
        job.status = None;
        job
    }

    /// Returns the job as if it existed. Clears `spec.dryRun`, because the plan shows the changes.
    pub(super) fn previewed(&self) -> OperationJob {
        let mut job = self.written();
        let meta = &mut job.metadata;
        if meta.name.as_ref().is_none_or(String::is_empty) {
            meta.name = meta.generate_name.as_ref().map(|prefix| format!("{prefix}{}", made_up::SUFFIX));
        }
        (meta.uid, meta.resource_version, meta.generation) = (Some(made_up::UID.into()), Some("1".into()), Some(1));
        if let Some(spec) = &mut job.spec {
            spec.dry_run = None;
        }
        job
    }

    /// Returns warnings about fields that the author may have set by mistake.
    pub(super) fn warnings(&self) -> Vec<String> {
        let dry = self.job.spec.as_ref().is_some_and(|spec| spec.dry_run == Some(true));
        let stored = self.job.metadata.uid.is_some() || self.job.status.is_some();
        let found = [
            dry.then_some(
                "spec.dryRun is true, so this job itself would only plan; this is what it would do without it",
            ),
            stored.then_some("the file is of a job that was created before: this is what a new one would do"),
        ];
        found.into_iter().flatten().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apps.kusionstack.io/v1alpha1\nkind: OperationJob\nmetadata: {name: a}\n";

    fn refused(text: &str) -> String {
        format!("{:#}", parse(text).unwrap_err())
    }

    #[test]
    fn one_job_is_read_and_anything_else_is_refused_with_its_fix() {
        let spec = "spec: {action: Replace, targets: [{name: a}], parameters: {any: {thing: null}}, partition: null}\n";
        assert_eq!(parse(&format!("{HEAD}{spec}")).unwrap().spec.unwrap().action.as_deref(), Some("Replace"));
        assert!(parse(&format!("---\n{HEAD}{spec}---\n")).is_ok(), "an empty document is none");
        let two = format!("{HEAD}{spec}---\n{HEAD}{spec}");
        for (text, words) in [
            ("", "it is empty"),
            (two.as_str(), "holds 2 documents"),
            ("kind: Pod\napiVersion: v1\n", "kind is Pod"),
            ("[1]", "kind is none"),
            ("{", "no YAML"),
            (&format!("{HEAD}spec: {{partition: many}}"), "a field is not of its type"),
            (&format!("{HEAD}spec: {{paralelism: 2}}"), "spec.paralelism"),
            (&format!("{HEAD}spec: {{targets: [{{name: a, container: [b]}}]}}"), "spec.targets[0].container"),
        ] {
            assert!(refused(text).contains(words), "{words:?}: {}", refused(text));
        }
    }

    #[test]
    fn the_namespace_is_that_of_the_file_of_the_option_or_of_the_context() {
        let job = |namespace: &str| parse(&format!("{HEAD}spec: {{}}").replace("{name: a}", namespace)).unwrap();
        let own = "{name: a, namespace: own}";
        assert_eq!(placed(job(own), None, "c").unwrap().namespace(), "own");
        assert_eq!(placed(job("{name: a}"), Some("n"), "c").unwrap().namespace(), "n");
        assert_eq!(placed(job("{name: a}"), None, "c").unwrap().namespace(), "c");
        assert!(placed(job(own), Some("n"), "c").is_err());
        assert!(placed(job("{}"), None, "c").is_err());
        let made_up = placed(job("{generateName: web-}"), None, "c").unwrap();
        assert_eq!((made_up.name(), made_up.previewed().metadata.name.as_deref()), ("", Some("web-aeiou")));
    }
}
