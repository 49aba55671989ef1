//! Helm as a program, with the values of a test.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The values that each test needs.
pub(crate) const IMAGE: [&str; 2] = [
    "image.repository=registry.example/oarlock",
    "image.digest=sha256:4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d",
];
/// The same image, as `oarlock manifests` gets it.
pub(crate) const REFERENCE: &str =
    "registry.example/oarlock@sha256:4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d4f1d";

/// Returns the folder of the chart.
pub(crate) fn chart() -> PathBuf {
    oarlock_chart::root().join(oarlock_chart::CHART)
}

fn program() -> PathBuf {
    let named = std::env::var_os("OARLOCK_HELM").map(PathBuf::from);
    named.unwrap_or_else(|| controlplane::helm(&|line| eprintln!("helm: {line}")).unwrap())
}

/// Returns a command of Helm that uses no file of the user. `folder` is for its caches.
pub(crate) fn helm(folder: &Path) -> Command {
    let mut command = Command::new(program());
    command.env_remove("KUBECONFIG").env("HOME", folder).env("KUBECONFIG", folder.join("no-cluster"));
    command
}

/// Adds values to a command.
pub(crate) fn with_values<'a>(command: &'a mut Command, values: &[&str]) -> &'a mut Command {
    for value in IMAGE.iter().chain(values) {
        let is_json =
            value.split_once('=').is_some_and(|(_, value)| value.starts_with('[') || value.starts_with("{\""));
        command.arg(if is_json { "--set-json" } else { "--set" }).arg(value);
    }
    command
}

pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Renders the chart. Returns the documents, or the message of Helm.
pub(crate) fn rendered(values: &[&str], more: &[&str]) -> Result<String, String> {
    let mut command = helm(&std::env::temp_dir());
    command
        .args(["template", "oarlock"])
        .arg(chart())
        .args(["--namespace", "oarlock-system", "--kube-version", controlplane::KUBERNETES_VERSION])
        .args(more);
    let output = with_values(&mut command, values).output().unwrap();
    if output.status.success() { Ok(String::from_utf8(output.stdout).unwrap()) } else { Err(text(&output)) }
}

/// Reads documents.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    oarlock_support::install::documents(text).unwrap()
}
