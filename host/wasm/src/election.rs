//! The election of the plugin that serves an action, and the statuses of the files that were not elected.
//!
//! An election takes the plugins that could serve, in the order of their files, and elects one plugin for each action. It leaves nothing to
//! chance. If several contents have one version, the content that serves continues. If none of them serves, the first file by name serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oarlock_core::plugin::grant::Grant;

use crate::plugin::Plugin;
use crate::status::{PluginState, PluginStatus};

/// The most other plugins that a message names.
const NAMED: usize = 3;

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
    /// The file of each serving plugin, by action.
    elected: BTreeMap<String, String>,
    /// The other files with the name and version of a serving plugin but with other contents, by action.
    doubles: BTreeMap<String, Vec<String>>,
    /// The other plugins that could serve an action, by action. Each is named with its file.
    losers: BTreeMap<String, BTreeSet<String>>,
}

impl Election {
    /// Elects a plugin for each action. `before` has the plugins that have served until now. It is empty while a starting host scans its
    /// files.
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
            let Some(Candidate { source, plugin }) = chosen(&first, before.get(action)) else { continue };
            let doubles = first.iter().filter(|other| other.plugin.digest() != plugin.digest());
            election.doubles.insert(action.to_owned(), doubles.map(|other| other.source.to_owned()).collect());
            let losers = rivals.iter().filter(|rival| rival.plugin.manifest().name != plugin.manifest().name);
            let named = losers.map(|rival| format!("{} ({})", rival.plugin.manifest().name, rival.source));
            election.losers.insert(action.to_owned(), named.collect());
            election.serving.insert(action.to_owned(), plugin.clone());
            election.elected.insert(action.to_owned(), source.to_owned());
        }
        election
    }

    /// Returns the status of a file whose plugin could serve.
    pub(crate) fn tell(&self, status: PluginStatus, plugin: &Plugin) -> PluginStatus {
        let action = &plugin.manifest().action;
        let Some(winner) = self.serving.get(action) else {
            return status.with(PluginState::Rejected, "ActionTaken", "no file serves its action");
        };
        if winner.digest() == plugin.digest() {
            return self.tell_winner(status, action);
        }
        let (name, version) = (&winner.manifest().name, &winner.manifest().version);
        let cure = if *name != plugin.manifest().name {
            "give it an action of its own, put its grant first, or give its grant `preferred: true`"
        } else if *version == plugin.manifest().version {
            "this file has the same version and another content; a file that serves goes on, and a start takes the first by name: \
             raise the version of the right one, or remove one file"
        } else {
            "raise the version, or remove one file"
        };
        let file = self.elected.get(action).map_or("", String::as_str);
        let sentence = format!("{file} ({name} {version}) serves this action; {cure}");
        status.with(PluginState::Rejected, "ActionTaken", &sentence)
    }
}

impl Election {
    fn tell_winner(&self, status: PluginStatus, action: &str) -> PluginStatus {
        let doubles = self.doubles.get(action).map(Vec::as_slice).unwrap_or_default();
        if doubles.is_empty() {
            let losers = self.losers.get(action).into_iter().flatten().take(NAMED).cloned().collect::<Vec<_>>();
            let also = match losers.is_empty() {
                true => String::new(),
                false => format!("; {} has the same action and does not serve", losers.join(" and ")),
            };
            return status.with(PluginState::Serving, "Serving", &format!("it serves its action{also}"));
        }
        let others = doubles.join(" and ");
        let sentence = format!(
            "it serves its action; {others} has the same version and another content: a file that serves goes on, and a start takes the \
             first by name; raise the version of the right one, or remove one file"
        );
        status.with(PluginState::Serving, "SameVersion", &sentence)
    }
}

/// Returns the candidates that come first. Among several names, a name with `preferred: true` wins, and then the name whose grant comes first.
/// Otherwise, a user who may write the file of one plugin could take the action of another plugin. Among the candidates of that name, the
/// highest version wins.
fn first_of<'a>(rivals: &[Candidate<'a>], grants: &[Grant]) -> Vec<Candidate<'a>> {
    let place = |rival: &Candidate<'_>| {
        let name = &rival.plugin.manifest().name;
        let at = grants.iter().position(|grant| grant.name == *name);
        let is_preferred = at.and_then(|at| grants.get(at)).is_some_and(|grant| grant.preferred);
        (!is_preferred, at.unwrap_or(usize::MAX))
    };
    let first = rivals.iter().map(place).min();
    let named = || rivals.iter().filter(|rival| Some(place(rival)) == first);
    let highest = named().map(|rival| &rival.plugin.manifest().version).max();
    named().filter(|rival| Some(&rival.plugin.manifest().version) == highest).copied().collect()
}

/// Returns the candidate that serves, among candidates of one version in the order of their files. The candidate that served before wins,
/// and otherwise the first.
fn chosen<'a>(first: &[Candidate<'a>], incumbent: Option<&Arc<Plugin>>) -> Option<Candidate<'a>> {
    let of = |digest: &str| first.iter().find(|candidate| candidate.plugin.digest() == digest).copied();
    incumbent.and_then(|incumbent| of(incumbent.digest())).or_else(|| first.first().copied())
}
