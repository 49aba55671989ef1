//! Scripts of tasks. Each script is one immutable ConfigMap in the namespace of the tasks' pods, for all nodes and jobs that run its text.
//!
//! The script's name derives from the SHA-256 of the text. The host makes a script before the first pod that mounts it. The host removes a script
//! after several sweeps in which no pod mounted it and no new pod wanted it. An object of another namespace cannot own a script. Source:
//! docs/operationjob.md 3.17.3.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::object::api_object::{Kind, ObjectKey};
use crate::requests::writes::Write;

/// The label with the name of the script, on a script and on each pod that mounts it.
pub const SCRIPT: &str = "oarlock.dev/script";
/// The data key of the script's text.
pub const TEXT: &str = "script";

/// Sweeps without use after which the host removes a script. Sweeps are as far apart as resyncs, and a pod follows its script much sooner.
const IDLE_SWEEPS: u8 = 3;

/// Returns the SHA-256 of a text, in hexadecimal digits.
pub fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the name of the script with this digest. The name has 160 bits of the digest.
pub fn name_of(sha256: &str) -> String {
    format!("oarlock-script-{}", sha256.get(..40).unwrap_or_default())
}

/// Returns the names of the scripts whose digests the parameters contain.
pub fn named_in(parameters: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    match parameters {
        Value::Object(fields) => {
            let digest = fields.get("sha256").and_then(Value::as_str).filter(|digest| digest.is_ascii());
            names.extend(digest.map(name_of));
            names.extend(fields.values().flat_map(named_in));
        }
        Value::Array(items) => names.extend(items.iter().flat_map(named_in)),
        _ => {}
    }
    names
}

/// Returns the write that makes a script for the job with this UID.
pub fn create(text: &str, namespace: &str, job_uid: &str) -> Write {
    let name = name_of(&sha256(text));
    let object = ObjectKey { kind: Kind::new("v1", "ConfigMap"), namespace: Some(namespace.to_owned()), name };
    let metadata = json!({"name": object.name, "namespace": namespace,
        "labels": {"app.kubernetes.io/name": "oarlock", SCRIPT: object.name}});
    let body =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": true, "data": {TEXT: text}});
    Write::Create { object, body, owner_uid: job_uid.to_owned() }
}

/// Returns the name of the script that a write makes.
pub fn made_by(write: &Write) -> Option<&str> {
    match write {
        Write::Create { object, body, .. } if is_script(body) => Some(&object.name),
        _ => None,
    }
}

/// Returns true if the document is a script.
pub(crate) fn is_script(document: &Value) -> bool {
    document.get("kind").is_some_and(|kind| kind == "ConfigMap")
        && document.pointer("/metadata/labels").is_some_and(|labels| labels.get(SCRIPT).is_some())
}

/// The step that comes before a pod can mount a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptStep {
    /// The host has to make the script.
    Make,
    /// The script exists.
    Nothing,
    /// The host is removing the script, and can make it again afterwards.
    Wait,
}

/// The scripts that one term knows, by name.
#[derive(Debug, Default)]
pub struct Scripts {
    known: BTreeMap<String, Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// True if this term made the script, or found that its text is right.
    is_there: bool,
    is_going: bool,
    /// Sweeps since the last use of the script.
    idle: u8,
}

impl Scripts {
    /// Returns the step that comes before a pod can mount this script. Counts as a use of the script.
    pub fn wanted(&mut self, name: &str) -> ScriptStep {
        let known = self.known.entry(name.to_owned()).or_default();
        if known.is_going {
            return ScriptStep::Wait;
        }
        known.idle = 0;
        if known.is_there { ScriptStep::Nothing } else { ScriptStep::Make }
    }

    /// Notes that the script exists and has its text.
    pub fn made(&mut self, name: &str) {
        self.known.entry(name.to_owned()).or_default().is_there = true;
    }

    /// Forgets a script that was removed, or whose state is unknown.
    pub fn forget(&mut self, name: &str) {
        self.known.remove(name);
    }

    /// Returns the deletions of scripts that no pod and no job has used for three sweeps. `all` are the existing scripts by key and UID. `used` are
    /// the names of scripts that pods mount or jobs name.
    pub fn sweep(&mut self, all: &[(ObjectKey, String)], used: &BTreeSet<String>) -> Vec<Write> {
        let names: BTreeSet<&String> = all.iter().map(|(key, _)| &key.name).collect();
        // A script that somebody else removed has to be made anew.
        self.known.retain(|name, _| names.contains(name));
        let mut writes = Vec::new();
        for (object, uid) in all {
            let known = self.known.entry(object.name.clone()).or_default();
            known.idle = if used.contains(&object.name) { 0 } else { known.idle.saturating_add(1) };
            known.is_going = known.idle >= IDLE_SWEEPS;
            if known.is_going {
                let (resource_version, grace_seconds, propagation) = (None, None, None);
                let (object, uid) = (object.clone(), uid.clone());
                writes.push(Write::Delete { object, uid, resource_version, grace_seconds, propagation });
            }
        }
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Vec<(ObjectKey, String)> {
        vec![(create(text, "t", "job").object().clone(), "uid".to_owned())]
    }

    #[test]
    fn one_text_is_one_object_that_nobody_changes() {
        let (one, same, other) = (create("a", "t", "1"), create("a", "t", "2"), create("b", "t", "1"));
        assert_eq!(one.object(), same.object());
        assert_ne!(one.object(), other.object());
        let Write::Create { body, .. } = &one else { panic!("it is a create") };
        assert_eq!((&body["immutable"], &body["data"]), (&json!(true), &json!({"script": "a"})));
        let name = "oarlock-script-ca978112ca1bbdcafac231b39a23dc4da786eff8";
        assert_eq!((one.object().name.as_str(), body["metadata"]["labels"][SCRIPT].as_str()), (name, Some(name)));
    }

    #[test]
    fn a_script_is_made_once_however_many_pods_mount_it() {
        let mut scripts = Scripts::default();
        // Until a reply comes, each pod that wants the script makes it.
        assert_eq!([scripts.wanted("a"), scripts.wanted("a")], [ScriptStep::Make, ScriptStep::Make]);
        scripts.made("a");
        assert_eq!([scripts.wanted("a"), scripts.wanted("b")], [ScriptStep::Nothing, ScriptStep::Make]);
    }

    #[test]
    fn a_script_goes_once_no_pod_mounts_it_and_none_was_begun_for_some_sweeps() {
        let (mut scripts, all, none) = (Scripts::default(), listed("a"), BTreeSet::new());
        let name = name_of(&sha256("a"));
        let quiet = |scripts: &mut Scripts| scripts.sweep(&all, &none).is_empty();
        assert!(quiet(&mut scripts) && quiet(&mut scripts));
        // A new pod wants the script right before its removal.
        assert_eq!(scripts.wanted(&name), ScriptStep::Make);
        scripts.made(&name);
        assert!(quiet(&mut scripts) && quiet(&mut scripts));
        assert!(scripts.sweep(&all, &[name.clone()].into()).is_empty(), "a pod mounts it");
        assert!(quiet(&mut scripts) && quiet(&mut scripts));
        let writes = scripts.sweep(&all, &none);
        assert!(matches!(&writes[..], [Write::Delete { object, uid, .. }] if object.name == name && uid == "uid"));
        // While the deletion is in flight, no pod may be made that would miss the script.
        assert_eq!(scripts.wanted(&name), ScriptStep::Wait);
        scripts.forget(&name);
        assert_eq!(scripts.wanted(&name), ScriptStep::Make);
    }

    #[test]
    fn parameters_name_scripts_by_digest_wherever_they_do() {
        let digest = sha256("a");
        let named = json!({"steps": [{"script": {"sha256": digest}}, {"script": "text"}], "sha256": 7});
        assert_eq!(named_in(&named), [name_of(&digest)].into());
    }

    #[test]
    fn a_script_that_somebody_else_removed_is_made_anew() {
        let mut scripts = Scripts::default();
        scripts.made("a");
        assert!(scripts.sweep(&[], &BTreeSet::new()).is_empty());
        assert_eq!(scripts.wanted("a"), ScriptStep::Make);
    }
}
