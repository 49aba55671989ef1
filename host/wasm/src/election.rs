//! The election of the plugin that serves an action, and what the files that were not elected are told.
//!
//! Takes the plugins that could serve, in the order of their files; yields one for each action, or the files that stand in each
//! other's way.

use std::collections::BTreeMap;
use std::sync::Arc;

use oarlock_core::plugin::grant::Grant;

use crate::plugin::Plugin;
use crate::status::{PluginState, PluginStatus};

/// A plugin that could serve, and its file.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub source: &'a str,
    pub plugin: &'a Arc<Plugin>,
}

/// The result of an election.
#[derive(Default)]
pub(crate) struct Election {
    /// The plugins that serve, by action.
    pub serving: BTreeMap<String, Arc<Plugin>>,
    /// The file of each of them, by action.
    elected: BTreeMap<String, String>,
    /// What all files of an action are told that is served by none of them.
    ties: BTreeMap<String, String>,
}

impl Election {
    /// Elects for each action. `before` has the plugins that served until now.
    pub(crate) fn hold<'a>(
        candidates: impl Iterator<Item = Candidate<'a>>,
        grants: &[Grant],
        before: &BTreeMap<String, Arc<Plugin>>,
    ) -> Self {
        let mut rivals: BTreeMap<&str, Vec<Candidate<'a>>> = BTreeMap::new();
        for candidate in candidates {
            rivals.entry(&candidate.plugin.manifest().action).or_default().push(candidate);
        }
        let mut election = Self::default();
        for (action, rivals) in rivals {
            let first = first_of(&rivals, grants);
            match chosen(&first, before.get(action)) {
                Some(Candidate { source, plugin }) => {
                    election.serving.insert(action.to_owned(), plugin.clone());
                    election.elected.insert(action.to_owned(), source.to_owned());
                }
                None => drop(election.ties.insert(action.to_owned(), tie(&first))),
            }
        }
        election
    }

    /// The status of a file whose plugin could serve.
    pub(crate) fn tell(&self, status: PluginStatus, plugin: &Plugin) -> PluginStatus {
        let action = &plugin.manifest().action;
        let Some(winner) = self.serving.get(action) else {
            let sentence = self.ties.get(action).map_or("no file serves its action", String::as_str);
            return status.with((PluginState::Rejected, "SameVersion", sentence));
        };
        if winner.digest() == plugin.digest() {
            return status.with((PluginState::Serving, "Serving", "it serves its action"));
        }
        let (name, version) = (&winner.manifest().name, &winner.manifest().version);
        let cure = if *name != plugin.manifest().name {
            "give it an action of its own, or put its grant first"
        } else if *version == plugin.manifest().version {
            "after a restart either may, since this file has the same version: raise it, or remove one file"
        } else {
            "raise the version, or remove one file"
        };
        let file = self.elected.get(action).map_or("", String::as_str);
        let sentence = format!("{file} ({name} {version}) serves this action; {cure}");
        status.with((PluginState::Rejected, "ActionTaken", &sentence))
    }
}

/// The candidates that come first. Where they have several names, these are of the name whose grant comes first: else whoever
/// may drop a file of one plugin would take another's action. Of that name they are of the highest version.
fn first_of<'a>(rivals: &[Candidate<'a>], grants: &[Grant]) -> Vec<Candidate<'a>> {
    let place = |rival: &Candidate<'_>| {
        let name = &rival.plugin.manifest().name;
        grants.iter().position(|grant| grant.name == *name).unwrap_or(usize::MAX)
    };
    let first = rivals.iter().map(place).min();
    let named = || rivals.iter().filter(|rival| Some(place(rival)) == first);
    let highest = named().map(|rival| &rival.plugin.manifest().version).max();
    named().filter(|rival| Some(&rival.plugin.manifest().version) == highest).copied().collect()
}

/// The one that serves, of candidates of one version: the only one, or the one that served before.
fn chosen<'a>(first: &[Candidate<'a>], incumbent: Option<&Arc<Plugin>>) -> Option<Candidate<'a>> {
    let of = |digest: &str| first.iter().find(|candidate| candidate.plugin.digest() == digest).copied();
    let (one, others) = first.split_first()?;
    if others.iter().all(|other| other.plugin.digest() == one.plugin.digest()) {
        return Some(*one);
    }
    incumbent.and_then(|incumbent| of(incumbent.digest()))
}

/// What the files of an action are told where several components of one version come first.
fn tie(first: &[Candidate<'_>]) -> String {
    let files: Vec<&str> = first.iter().map(|candidate| candidate.source).collect();
    let files = files.join(" and ");
    let Some(Candidate { plugin, .. }) = first.first() else { return String::new() };
    let (name, version, action) = (&plugin.manifest().name, &plugin.manifest().version, &plugin.manifest().action);
    format!(
        "{files} claim to be {name} {version} with different contents, so no file serves {action}: remove the wrong ones, or \
         raise the version of the right one"
    )
}
