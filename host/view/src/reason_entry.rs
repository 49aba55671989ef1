//! The catalogue of reasons: each word that a status, an event or a command shows, with its meaning and the next step.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use strsim::damerau_levenshtein;

/// The entries, as YAML.
const CATALOGUE: &str = include_str!("../reasons.yaml");
/// The start of a word that begins with the name of an action.
const ANY_ACTION: &str = "<Action>";
/// The most letters in which a similar word may differ.
const WRONG: usize = 3;
/// The most similar words that an answer names.
const SIMILAR: usize = 5;

/// The kind whose status, events or answers show a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum ReasonKind {
    /// ActionPlugin.
    ActionPlugin,
    /// DaemonJob.
    DaemonJob,
    /// JobFlow.
    JobFlow,
    /// JobTemplate.
    JobTemplate,
    /// OperationJob.
    OperationJob,
    /// OpsJob.
    OpsJob,
    /// An event of a Node.
    Node,
    /// An event of a Pod.
    Pod,
    /// A plugin file.
    Plugin,
    /// An answer of the REST API.
    #[serde(rename = "REST")]
    Rest,
}

impl ReasonKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::ActionPlugin,
        Self::DaemonJob,
        Self::JobFlow,
        Self::JobTemplate,
        Self::OperationJob,
        Self::OpsJob,
        Self::Node,
        Self::Pod,
        Self::Plugin,
        Self::Rest,
    ];

    /// Returns the name of the kind, as Kubernetes writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ActionPlugin => "ActionPlugin",
            Self::DaemonJob => "DaemonJob",
            Self::JobFlow => "JobFlow",
            Self::JobTemplate => "JobTemplate",
            Self::OperationJob => "OperationJob",
            Self::OpsJob => "OpsJob",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::Plugin => "Plugin",
            Self::Rest => "REST",
        }
    }

    /// Returns the short name that kubectl takes, for the kinds that have one.
    fn short_name(self) -> Option<&'static str> {
        match self {
            Self::ActionPlugin => Some("ap"),
            Self::DaemonJob => Some("dj"),
            Self::JobFlow => Some("jf"),
            Self::JobTemplate => Some("jt"),
            Self::OperationJob => Some("opj"),
            Self::OpsJob => Some("ops"),
            Self::Node | Self::Pod | Self::Plugin | Self::Rest => None,
        }
    }

    /// Parses a name or a short name, in upper or lower case.
    pub fn read(text: &str) -> Option<Self> {
        let is = |name: &str| name.eq_ignore_ascii_case(text);
        Self::ALL.into_iter().find(|kind| is(kind.name()) || kind.short_name().is_some_and(is))
    }
}

/// The place that shows a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasonPlace {
    /// The reason of a condition.
    Condition,
    /// The error of a target.
    Target,
    /// The reason of a step of a JobFlow, or of a node of a DaemonJob.
    Step,
    /// The reason of an event.
    Event,
    /// The phase of an OpsJob, or the reason of its condition.
    Phase,
    /// The first word of what a job waits for.
    Waits,
    /// The reason why an OpsJob leaves a node out.
    Skip,
    /// A word of `oarlock plan`.
    Plan,
    /// The reason why the host does not serve a plugin file.
    Plugin,
    /// The error code of the REST API.
    Rest,
    /// The type of a condition, which other entries name.
    Type,
    /// The state of a job or of one of its parts.
    State,
}

impl ReasonPlace {
    /// Returns the place in words, for example `error of a target`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Condition => "reason of a condition",
            Self::Target => "error of a target",
            Self::Step => "reason of a step or node",
            Self::Event => "reason of an event",
            Self::Phase => "reason of a phase",
            Self::Waits => "what a job waits for",
            Self::Skip => "reason of a skipped node",
            Self::Plan => "word of a plan",
            Self::Plugin => "reason of a plugin file",
            Self::Rest => "error code",
            Self::Type => "type of a condition",
            Self::State => "state",
        }
    }

    /// Returns the field, command or column that shows the reason.
    pub fn field(self) -> &'static str {
        match self {
            Self::Condition | Self::Phase => "status.conditions[].reason",
            Self::Target => "status.targetDetails[].error.reason",
            Self::Step => "status.steps[].reason or status.nodes[].reason",
            Self::Event => "kubectl get events",
            Self::Waits => "WAITS FOR in oarlock get",
            Self::Skip => "spec.skipped[].reason",
            Self::Plan => "oarlock plan",
            Self::Plugin => "oarlock plugin vet",
            Self::Rest => "errorCode",
            Self::Type => "status.conditions[].type",
            Self::State => "status.progress, status.phase, status.state or the state of a part",
        }
    }
}

/// One meaning of one word.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ReasonEntry {
    /// The word, as the status has it.
    pub reason: String,
    /// The kinds that show the word with this meaning.
    pub kinds: Vec<ReasonKind>,
    /// The place that shows the word.
    #[serde(rename = "where")]
    pub place: ReasonPlace,
    /// The meaning, in one to three sentences.
    pub is: String,
    /// The next step of the reader, in one to three sentences.
    #[serde(rename = "do")]
    pub next: String,
}

impl ReasonEntry {
    /// Returns true if `text` is this word, or begins with it, as the text of a wait does: `Budget web`.
    fn is_meant(&self, text: &str) -> bool {
        let begins = |word: &str, text: &str| {
            let Some((start, rest)) = text.split_at_checked(word.len()) else { return false };
            start.eq_ignore_ascii_case(word) && rest.chars().next().is_none_or(|next| " :,".contains(next))
        };
        match self.reason.strip_prefix(ANY_ACTION) {
            None => begins(&self.reason, text),
            Some(end) => {
                let at = text.len().saturating_sub(end.len());
                begins(&self.reason, text) || text.get(at..).is_some_and(|last| last.eq_ignore_ascii_case(end))
            }
        }
    }

    /// Returns the kinds as one text: `JobFlow, DaemonJob`.
    pub fn kind_names(&self) -> String {
        self.kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
    }
}

/// Returns all entries, sorted by word.
///
/// # Errors
///
/// If the catalogue is no valid YAML. The binary contains the catalogue, and a test reads it.
pub fn reason_entries() -> Result<Vec<ReasonEntry>, serde_saphyr::Error> {
    serde_saphyr::from_str(CATALOGUE)
}

/// Returns the entries of a word. Upper and lower case count only if the word exists in several cases.
pub fn entries_of_reason<'a>(entries: &'a [ReasonEntry], text: &str) -> Vec<&'a ReasonEntry> {
    let exact: Vec<&ReasonEntry> = entries.iter().filter(|entry| entry.reason == text).collect();
    if !exact.is_empty() {
        return exact;
    }
    entries.iter().filter(|entry| entry.is_meant(text)).collect()
}

/// Returns up to five words that resemble `text`, the closest one first.
pub fn similar_reasons<'a>(entries: &'a [ReasonEntry], text: &str) -> Vec<&'a str> {
    let wanted = text.chars().take(64).collect::<String>().to_ascii_lowercase();
    let length = wanted.chars().count();
    let words: BTreeSet<&str> = entries.iter().map(|entry| entry.reason.as_str()).collect();
    let rank = |word: &&'a str| {
        let known = word.to_ascii_lowercase();
        let distance = damerau_levenshtein(&wanted, &known);
        let contains = length > 3 && (known.contains(&wanted) || wanted.contains(&known));
        (distance <= WRONG.min(length.saturating_sub(1)) || contains).then_some((distance, *word))
    };
    let mut ranked: Vec<(usize, &str)> = words.iter().filter_map(rank).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, word)| word).take(SIMILAR).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_is_sorted_and_has_each_meaning_once() {
        let entries = reason_entries().unwrap();
        // The meanings of an error code differ by their HTTP status, with which they begin.
        let status = |entry: &ReasonEntry| {
            entry.is.split(':').next().filter(|_| entry.place == ReasonPlace::Rest).map(str::to_owned)
        };
        let key = |entry: &ReasonEntry| (entry.reason.to_lowercase(), entry.place, entry.kinds.clone(), status(entry));
        let keys: Vec<_> = entries.iter().map(key).collect();
        assert!(keys.is_sorted_by_key(|key| &key.0), "sort reasons.yaml by word");
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{key:?} is there twice");
        }
        for ReasonEntry { reason, kinds, is, next, .. } in &entries {
            assert!(!kinds.is_empty() && is.ends_with('.') && next.ends_with('.'), "{reason}");
            assert!(kinds.is_sorted_by(|one, other| one.name() < other.name()), "{reason}: sort its kinds");
        }
    }

    #[test]
    fn a_word_is_found_in_any_case_with_its_text_and_with_its_action() {
        let entries = reason_entries().unwrap();
        let word = |text: &str| entries_of_reason(&entries, text).first().map(|entry| entry.reason.clone());
        for (text, expected) in [
            ("NotReady", "NotReady"),
            ("notready", "NotReady"),
            ("Budget web/pdb", "Budget"),
            ("Replacement of web-1", "Replacement of"),
            ("RebootOpsLifecycleFinished", "<Action>OpsLifecycleFinished"),
        ] {
            assert_eq!(word(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!([word("Budgets"), word(""), word("NotReadyäö")], [None, None, None]);
        assert!(entries_of_reason(&entries, "NotReady").len() > 1, "it has several meanings");
    }

    #[test]
    fn a_word_with_a_slip_has_similar_words_and_a_foreign_word_has_none() {
        let entries = reason_entries().unwrap();
        assert_eq!(similar_reasons(&entries, "NotRaedy").first(), Some(&"NotReady"));
        assert!(similar_reasons(&entries, "Deadline").contains(&"DeadlineExceeded"));
        assert!(similar_reasons(&entries, "CrashLoopBackOff").is_empty());
        assert!(similar_reasons(&entries, "").is_empty());
    }

    #[test]
    fn a_kind_is_read_by_its_name_and_its_short_name() {
        assert_eq!(ReasonKind::read("opj"), Some(ReasonKind::OperationJob));
        assert_eq!(ReasonKind::read("jobflow"), Some(ReasonKind::JobFlow));
        assert_eq!(ReasonKind::read("Deployment"), None);
    }
}
