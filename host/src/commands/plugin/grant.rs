//! `oarlock plugin grant`: prints a grant of everything that a plugin asks for.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use oarlock_core::plugin::grant::{ANY_HOST_PATH, ANY_REGISTRY, API_VERSION, Grant, KIND, TaskRule};
use oarlock_core::plugin::manifest::{Manifest, TargetKind};
use serde_json::{Value, json};

use super::{read, refused};
use crate::commands::output::print;

pub(super) const EXAMPLES: &str = "\
Examples:
  oarlock plugin grant restart.wasm                                     print the grant; read it before you append it to grants.yaml
  oarlock plugin grant restart.wasm --namespace shop >> grants.yaml
  oarlock plugin grant restart.wasm --any-version > grants.yaml         for a plugin that you still develop
  oarlock plugin grant reboot.wasm --namespace ops >> grants.yaml       a plugin for nodes needs the namespaces whose jobs may use it

The grant allows everything that the plugin asks for, so read each `reason` first. You may have to add three lists yourself:
  hostPaths: [/opt/checks]       in `tasks`: directories of nodes that checks may read
  registries: [docker.io]        registries from which images are copied, with `authHosts`
  scripts: [template, input]     sources of scripts; `input` allows scripts in OpsJobs";

/// Arguments of `oarlock plugin grant`.
#[derive(Debug, Args)]
pub(crate) struct GrantArgs {
    /// A component, <name>.wasm
    file: PathBuf,
    /// Grant to any version of the plugin that asks for no more, instead of only to this file
    #[arg(long)]
    any_version: bool,
    /// A namespace whose jobs may use the plugin, or a pattern that ends in `*`; can be repeated [default: *; a plugin
    /// that works on nodes has no default]
    #[arg(long = "namespace", value_name = "NAMESPACE")]
    namespaces: Vec<String>,
}

/// Prints the grant.
pub(super) fn run(args: GrantArgs) -> anyhow::Result<ExitCode> {
    let facts = oarlock_wasm::inspect(&read(&args.file)?).map_err(|rejection| refused(&args.file, &rejection))?;
    let Some(manifest) = facts.manifest else {
        bail!("{} has no manifest: write it with the SDK or `oarlock plugin annotate`", args.file.display());
    };
    let digest = (!args.any_version).then_some(facts.digest);
    let grant = Grant {
        any_version: args.any_version,
        digest,
        namespaces: namespaces(args.namespaces, &manifest)?,
        limits: manifest.limits,
        ..named(&manifest)
    };
    print(&document(&grant)?)
}

/// Returns the named namespaces, or all namespaces if none is named. A plugin that reaches nodes needs named
/// namespaces, because each of its jobs could reach every node.
fn namespaces(named: Vec<String>, manifest: &Manifest) -> anyhow::Result<Vec<String>> {
    if !named.is_empty() {
        return Ok(named);
    }
    if manifest.takes(TargetKind::Node) || manifest.tasks.iter().any(|task| task.reaches_nodes()) {
        bail!(
            "{} works on nodes, which belong to every namespace: name by `--namespace NAMESPACE` those whose editors may have it do so",
            manifest.name
        );
    }
    Ok(vec!["*".to_owned()])
}

/// Returns the grant of everything that a manifest names. The admin must add the rest: directories of nodes,
/// registries, scripts of jobs and commits of containers.
fn named(manifest: &Manifest) -> Grant {
    let mut grant = Grant::of_all(manifest);
    grant.tasks = grant.tasks.iter().filter_map(TaskRule::at_least).collect();
    for rule in &mut grant.tasks {
        rule.host_paths.retain(|path| path != ANY_HOST_PATH);
        rule.registries.retain(|registry| registry != ANY_REGISTRY);
    }
    grant
}

/// Returns a grant as a YAML document that can follow others.
pub(super) fn document(grant: &Grant) -> anyhow::Result<String> {
    let mut spec = serde_json::to_value(grant).context("cannot write the grant")?;
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !is_default(value));
    }
    let document = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": grant.name}, "spec": spec});
    let text = serde_saphyr::to_string(&document).context("cannot write the grant as YAML")?;
    Ok(format!("---\n{}\n", text.trim_end()))
}

/// Returns true for a value that the document can omit.
fn is_default(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_for_every_namespace_unless_its_plugin_works_on_nodes() {
        let of = |manifest: &str, named: &[&str]| {
            let manifest = format!(r#"{{"schema": 1, "name": "x", "version": "1.0.0", "action": "X", {manifest}}}"#);
            let named = named.iter().map(|name| (*name).to_owned()).collect();
            namespaces(named, &Manifest::parse(manifest.as_bytes()).unwrap()).map_err(|error| error.to_string())
        };
        assert_eq!(of(r#""target": ["Pod"]"#, &[]), Ok(vec!["*".to_owned()]));
        for manifest in [
            r#""target": ["Node"], "reads": [{"apiVersion": "v1", "kind": "Node", "reason": "r"}]"#,
            r#""target": ["Pod", "Node"], "reads": [{"apiVersion": "v1", "kind": "Node", "reason": "r"}]"#,
            r#""target": ["Pod"], "tasks": [{"name": "run-on-node", "builtins": ["reboot"], "reason": "r"}]"#,
        ] {
            let refused = of(manifest, &[]).unwrap_err();
            assert!(refused.contains("x works on nodes") && refused.contains("--namespace NAMESPACE"), "{refused}");
            assert_eq!(of(manifest, &["ops"]), Ok(vec!["ops".to_owned()]));
        }
    }

    #[test]
    fn a_grant_has_the_commands_scripts_directories_and_capabilities_that_are_asked_for_and_none_that_are_left_to_the_admin()
     {
        let manifest = br#"{"schema": 1, "name": "x", "version": "1.0.0", "action": "X", "target": ["Pod"], "tasks": [
            {"name": "run-on-node", "builtins": ["reboot"], "scripts": true, "reason": "r"},
            {"name": "check-pod", "hostPaths": ["/data", "/"], "capabilities": ["DAC_READ_SEARCH"], "reason": "s"}]}"#;
        let text = document(&named(&Manifest::parse(manifest).unwrap())).unwrap();
        let read: Value = serde_saphyr::from_str(text.trim_start_matches("---\n")).unwrap();
        let tasks = json!([{"name": "run-on-node", "builtins": ["reboot"], "scripts": true, "reason": "r"},
            {"name": "check-pod", "hostPaths": ["/data"], "capabilities": ["DAC_READ_SEARCH"], "reason": "s"}]);
        assert_eq!(read["spec"]["tasks"], tasks, "{text}");
    }
}
