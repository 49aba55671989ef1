//! Converts the answers of a plugin into the types of the contract, and counts their size.
//!
//! The bindings of the host and of the SDK define the same types twice, so a macro converts them. It also converts later versions of the
//! contract. It may not judge: [`authorize`](crate::authorize) decides whether a proposal is allowed.

use serde_json::Value;

use crate::proposal::Mutation;

/// The longest text that people see. The API has the same limit for the note of an event.
const MESSAGE_CHARS: usize = 1024;
/// The cost of each list entry besides its bytes, so that empty entries are not free.
pub const EACH: usize = 64;

/// Returns a mutation that this version of the host does not support.
pub fn other(verb: &str) -> Mutation {
    Mutation::Other { verb: verb.to_owned() }
}

/// Parses a document that a plugin gave as text.
///
/// # Errors
///
/// If the text is not JSON, with the problem and its place.
pub fn json(object: &str, text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("it proposed {object} that is not JSON: {error}"))
}

/// Returns a CamelCase word for programs. Any other text becomes `PluginGaveNoReason`.
pub fn word(text: &str) -> String {
    let kept: String = text.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    if kept.starts_with(|c: char| c.is_ascii_uppercase()) { kept } else { "PluginGaveNoReason".to_owned() }
}

/// Returns a text that is safe to show: without control characters and shortened.
pub fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MESSAGE_CHARS).collect()
}

/// Returns the size of a list of pairs.
pub fn pairs(pairs: &[(String, String)]) -> usize {
    pairs.iter().map(|(key, value)| key.len() + value.len() + EACH).sum()
}

/// Returns the size of a list of words.
pub fn words(words: &[String]) -> usize {
    words.iter().map(|word| word.len() + EACH).sum()
}

/// Defines `registration`, `proposal`, `report` and `failure` for the bindings in the module `$action`. Each function returns the value in
/// the types of the contract, and the number of bytes of it that came from the plugin. A function returns an error if this host does not
/// know or cannot parse a part of the value.
#[macro_export]
macro_rules! conversions {
    ($action:path) => {
        use $action as action;
        use $crate::convert;
        use $crate::object_key::{Kind, ObjectKey};
        use $crate::proposal::{
            CallFailure, DrainRequest, MetadataChange, Mutation, ObjectRef, PluginError, PluginEvent, Proposal,
            Registration, Relation, RelationKey, Report, State, TaintChange, TaskRequest,
        };

        /// Converts a registration and counts the bytes of it that came from the plugin. Returns an error for a relation that this host
        /// does not know.
        pub(crate) fn registration(from: action::Registration) -> Result<(Registration, usize), String> {
            let relation_bytes = |relation: &action::Relation| {
                relation.name.len() + relation.api_version.len() + relation.kind.len() + convert::EACH
            };
            let bytes =
                from.relations.iter().map(relation_bytes).sum::<usize>() + convert::words(&from.exclusive_extras);
            let relations = from.relations.into_iter().map(relation).collect::<Result<Vec<_>, _>>()?;
            Ok((Registration { relations, exclusive_extras: from.exclusive_extras }, bytes))
        }

        fn relation(from: action::Relation) -> Result<Relation, String> {
            let by = match from.by {
                action::RelationKey::Label(label) => RelationKey::Label(label),
                action::RelationKey::Extra(key) => RelationKey::Extra(key),
                action::RelationKey::Field(pointer) => RelationKey::Field(pointer),
                action::RelationKey::Parameter(pointer) => RelationKey::Parameter(pointer),
                action::RelationKey::OwnerIsJob => RelationKey::OwnerIsJob,
                action::RelationKey::OwnerIsTarget => RelationKey::OwnerIsTarget,
                action::RelationKey::SameController => RelationKey::SameController,
                action::RelationKey::Other((name, _)) => {
                    return Err(format!(
                        "relation {:?} matches by {:?}, which this host does not know",
                        from.name,
                        convert::shown(&name)
                    ));
                }
            };
            Ok(Relation { name: from.name, kind: Kind::new(from.api_version, from.kind), by })
        }

        /// Converts a proposal and counts the bytes of it that came from the plugin.
        pub(crate) fn proposal(from: action::Proposal) -> Result<(Proposal, usize), String> {
            let bytes = size(&from);
            let mutations = from.mutations.into_iter().map(mutation).collect::<Result<Vec<_>, _>>()?;
            let events = from.events.into_iter().map(event).collect();
            Ok((Proposal { mutations, set_extra: from.set_extra, remove_extra: from.remove_extra, events }, bytes))
        }

        /// Converts a report and counts the bytes of it that came from the plugin.
        pub(crate) fn report(from: action::Report) -> Result<(Report, usize), String> {
            let (proposal, mut bytes) = proposal(from.proposal)?;
            let state = match from.state {
                action::State::Processing => State::Processing,
                action::State::Succeeded => State::Succeeded,
                action::State::Failed(error) => {
                    bytes += error.reason.len() + error.message.len();
                    State::Failed(PluginError {
                        reason: convert::word(&error.reason),
                        message: convert::shown(&error.message),
                    })
                }
            };
            Ok((Report { state, proposal, check_after_ms: from.check_after_ms }, bytes))
        }

        /// Converts a failure and counts the bytes of it that came from the plugin.
        pub(crate) fn failure(from: action::Failure) -> (CallFailure, usize) {
            let bytes = from.reason.len() + from.message.len();
            let failure = CallFailure {
                retryable: from.retryable,
                reason: convert::word(&from.reason),
                message: convert::shown(&from.message),
                retry_after_ms: from.retry_after_ms,
            };
            (failure, bytes)
        }

        fn object(from: action::ObjectRef) -> ObjectRef {
            let kind = Kind::new(from.api_version, from.kind);
            ObjectRef { key: ObjectKey { kind, namespace: from.namespace, name: from.name }, uid: from.uid }
        }

        fn mutation(from: action::Mutation) -> Result<Mutation, String> {
            Ok(match from {
                action::Mutation::Metadata(change) => Mutation::Metadata(MetadataChange {
                    object: object(change.object),
                    set_labels: change.set_labels,
                    remove_labels: change.remove_labels,
                    set_annotations: change.set_annotations,
                    remove_annotations: change.remove_annotations,
                    add_finalizers: change.add_finalizers,
                    remove_finalizers: change.remove_finalizers,
                    keep: change.keep,
                }),
                action::Mutation::Create(text) => Mutation::Create(convert::json("an object to create", &text)?),
                action::Mutation::Patch(patch) => Mutation::Patch {
                    object: object(patch.object),
                    subresource: patch.subresource,
                    patch: convert::json("a merge patch", &patch.patch)?,
                },
                action::Mutation::Evict(eviction) => {
                    Mutation::Evict { pod: object(eviction.pod), grace_seconds: eviction.grace_period_seconds }
                }
                action::Mutation::Delete(deletion) => Mutation::Delete {
                    object: object(deletion.object),
                    grace_seconds: deletion.grace_period_seconds,
                    propagation: deletion.propagation.map(|how| propagation(how).to_owned()),
                },
                action::Mutation::Schedulable(change) => {
                    Mutation::Schedulable { node: change.node, schedulable: change.schedulable }
                }
                action::Mutation::Taint(taint) => Mutation::Taint(TaintChange {
                    node: taint.node,
                    key: taint.key,
                    value: taint.value,
                    effect: taint.effect,
                    present: taint.present,
                }),
                action::Mutation::Drain(drain) => Mutation::Drain(DrainRequest {
                    node: drain.node,
                    grace_seconds: drain.grace_period_seconds,
                    delete_empty_dir_data: drain.delete_empty_dir_data,
                    force: drain.force,
                }),
                action::Mutation::Task(task) => Mutation::Task(TaskRequest {
                    name: task.name,
                    kind: task.kind,
                    arguments: convert::json("arguments of a task", &task.arguments)?,
                }),
                action::Mutation::Other((name, _)) => convert::other(&convert::shown(&name)),
            })
        }

        fn propagation(from: action::Propagation) -> &'static str {
            match from {
                action::Propagation::Background => "Background",
                action::Propagation::Foreground => "Foreground",
                action::Propagation::Orphan => "Orphan",
            }
        }

        fn event(from: action::Event) -> PluginEvent {
            PluginEvent {
                warning: from.severity == action::Severity::Warning,
                reason: convert::word(&from.reason),
                message: convert::shown(&from.message),
            }
        }

        fn named(object: &action::ObjectRef) -> usize {
            let optional = [&object.namespace, &object.uid].into_iter().flatten().map(String::len).sum::<usize>();
            object.api_version.len() + object.kind.len() + object.name.len() + optional
        }

        fn size(from: &action::Proposal) -> usize {
            let mutations = from.mutations.iter().map(|mutation| match mutation {
                action::Mutation::Metadata(change) => {
                    named(&change.object)
                        + convert::pairs(&change.set_labels)
                        + convert::pairs(&change.set_annotations)
                        + convert::words(&change.remove_labels)
                        + convert::words(&change.remove_annotations)
                        + convert::words(&change.add_finalizers)
                        + convert::words(&change.remove_finalizers)
                }
                action::Mutation::Create(text) => text.len(),
                action::Mutation::Patch(patch) => named(&patch.object) + patch.patch.len(),
                action::Mutation::Evict(eviction) => named(&eviction.pod),
                action::Mutation::Delete(deletion) => named(&deletion.object),
                action::Mutation::Schedulable(change) => change.node.len(),
                action::Mutation::Taint(taint) => {
                    taint.node.len() + taint.key.len() + taint.value.len() + taint.effect.len()
                }
                action::Mutation::Drain(drain) => drain.node.len(),
                action::Mutation::Task(task) => task.name.len() + task.kind.len() + task.arguments.len(),
                action::Mutation::Other((name, arguments)) => name.len() + arguments.len(),
            });
            let events = from.events.iter().map(|event| event.reason.len() + event.message.len() + convert::EACH);
            mutations.map(|bytes| bytes + convert::EACH).sum::<usize>()
                + convert::pairs(&from.set_extra)
                + convert::words(&from.remove_extra)
                + events.sum::<usize>()
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_messages_of_plugins_can_be_shown() {
        assert_eq!(word("NoController"), "NoController");
        assert_eq!(word("\u{1b}[31m"), "PluginGaveNoReason");
        assert_eq!(shown("a\r\nb\u{7}"), "a  b ");
        assert_eq!(shown(&"x".repeat(5000)).len(), 1024);
    }
}
