//! The plugin of a plan: finds it among local files, and loads it under its grant as the host would.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use oarlock_core::plugin::lookup::{PluginInfo, PluginLookup};
use oarlock_wasm::{PluginState, Plugins};

use super::cluster_plugin::Served;
use crate::commands::text_file::read_grants;
use crate::host::{plugin_options, start_plugins};

/// A plugin that runs on this machine.
pub(super) struct LocalPlugin {
    /// All loaded plugins.
    pub(super) plugins: Plugins,
    /// The plugin that serves the action.
    pub(super) info: Arc<PluginInfo>,
    /// The file of the serving plugin.
    pub(super) file: PathBuf,
    /// The file with the plugin's grant.
    pub(super) grants: PathBuf,
}

/// A file that may contain the plugin.
struct Candidate {
    file: PathBuf,
    bytes: Vec<u8>,
    action: Option<String>,
}

/// Returns the error if the user named no plugins. It explains how to get those of the cluster.
pub(super) fn none_named(action: &str, served: &Served) -> anyhow::Error {
    let known = served.describe(action);
    anyhow!(
        "a plan runs the plugin on this machine: name the directory of the plugin files with --plugins, and their grants with \
         --grants. {known}. docs/planning.md shows how to copy both from the cluster"
    )
}

impl LocalPlugin {
    /// Loads the plugin of an action.
    ///
    /// # Errors
    ///
    /// If there is no such plugin, or if its grant does not allow it to serve. The error names the fix.
    pub(super) async fn load(plugins: &Path, grants: &Path, action: &str) -> anyhow::Result<Self> {
        let found = candidates(plugins)?;
        let (own, others): (Vec<Candidate>, Vec<Candidate>) =
            found.into_iter().partition(|candidate| candidate.action.as_deref() == Some(action));
        if own.is_empty() {
            bail!(no_plugin(plugins, action, &others));
        }
        if !grants.is_file() {
            let (grants, file) = (grants.display(), own.first().map(|own| own.file.display().to_string()));
            let file = file.unwrap_or_default();
            bail!(
                "there are no grants at {grants}: name the cluster's with --grants, or write those of all that the plugin asks \
                 for with `oarlock plugin grant {file} > {grants}`"
            );
        }
        let (_, granted) = read_grants(grants)?;
        let loaded = start_plugins(plugin_options(None, None)?).await.context("cannot run plugins")?;
        loaded.set_grants(granted).await;
        for Candidate { file, bytes, .. } in own {
            loaded.publish(&file.display().to_string(), bytes).await;
        }
        match loaded.find(action, None) {
            PluginLookup::Serving(info) => {
                let list = loaded.list();
                let serving = list.iter().find(|status| status.digest.as_ref() == Some(&info.digest));
                let file = serving.map(|status| PathBuf::from(&status.source)).unwrap_or_default();
                Ok(Self { plugins: loaded, info, file, grants: grants.to_owned() })
            }
            PluginLookup::NotServing { .. } | PluginLookup::Unknown { .. } => bail!(not_serving(&loaded, grants)),
        }
    }
}

/// Returns the plugin files at `path`, which is a directory or a file.
fn candidates(path: &Path) -> anyhow::Result<Vec<Candidate>> {
    let cannot = || format!("cannot read the plugins {}", path.display());
    let mut files: Vec<PathBuf> = match path.is_dir() {
        true => {
            let entries = std::fs::read_dir(path).with_context(cannot)?;
            let paths = entries.map(|entry| entry.map(|entry| entry.path()));
            paths.collect::<Result<_, _>>().with_context(cannot)?
        }
        false => vec![path.to_owned()],
    };
    files.retain(|file| file == path || crate::commands::plugin::is_seen(file) && file.is_file());
    files.sort();
    let read = |file: PathBuf| {
        let bytes = crate::commands::plugin::read(&file)?;
        let manifest = oarlock_wasm::inspect(&bytes).ok().and_then(|inspection| inspection.manifest);
        Ok(Candidate { file, bytes, action: manifest.map(|manifest| manifest.action) })
    };
    files.into_iter().map(read).collect()
}

fn no_plugin(path: &Path, action: &str, others: &[Candidate]) -> String {
    let shown = |other: &Candidate| {
        let name = other.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        format!("{name} ({})", other.action.as_deref().unwrap_or("no plugin that the host would load"))
    };
    let there: Vec<String> = others.iter().map(shown).collect();
    let there = if there.is_empty() { "no .wasm file".to_owned() } else { there.join(", ") };
    format!(
        "no plugin in {} is for the action {action}: there is {there}; name its file or directory with --plugins",
        path.display()
    )
}

/// Returns the reason why no plugin serves, with the missing grants.
fn not_serving(loaded: &Plugins, grants: &Path) -> String {
    let lines: Vec<String> = loaded
        .list()
        .iter()
        .map(|status| {
            let missing: String = status.missing.iter().map(|line| format!("\n  {line}")).collect();
            match status.state {
                PluginState::AwaitingGrant if !missing.is_empty() => format!(
                    "the host would not serve {}: {} does not grant{missing}\n`oarlock plugin grant {}` prints a grant of all \
                     that it asks for",
                    status.source,
                    grants.display(),
                    status.source
                ),
                _ => format!("the host would not serve {}: {}: {}", status.source, status.reason, status.message),
            }
        })
        .collect();
    lines.join("\n")
}
