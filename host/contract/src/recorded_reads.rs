//! The reads of a replay, answered from a record.
//!
//! A record has only the reads that the plugin made. Any other read ends the replay, because a made-up answer could change the decision.

use crate::grant::field_covers;
use crate::manifest::Manifest;
use crate::names::shown;
use crate::object_key::Kind;
use crate::proposal::Registration;
use crate::visit_record::{PluginRead, ReadAnswer, RecordedObject, VisitRecord};

/// A read that a record does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unrecorded {
    /// The read, such as `related("new-pod", live)`.
    pub read: String,
    /// Why the record does not answer the read.
    pub why: String,
}

impl std::fmt::Display for Unrecorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.read, self.why)
    }
}

impl VisitRecord {
    /// Returns the recorded answer to a read of a plugin with this registration.
    ///
    /// # Errors
    ///
    /// If the record does not answer the read.
    pub fn answer_to(&self, read: &PluginRead, registration: &Registration) -> Result<ReadAnswer, Unrecorded> {
        let lacks = |why: &str| Unrecorded { read: read.to_string(), why: why.to_owned() };
        if let PluginRead::Related { name, .. } = read {
            let declared = match registration.relation(name) {
                Ok(declared) => declared,
                Err(sentence) => return Ok(self.refusal_of(read).unwrap_or(ReadAnswer::NotDeclared(sentence))),
            };
            if self.plugin.relations.iter().find(|own| own.name == *name) != Some(declared) {
                return Err(lacks("the recorded plugin did not declare this relation, or declared another rule"));
            }
        }
        let Some(found) = self.reads.iter().find(|own| own.read == *read) else {
            return Err(lacks("the recorded plugin did not make this read"));
        };
        let withheld = |index: &usize| matches!(self.objects.get(*index), Some(RecordedObject::Withheld(_)));
        let is_withheld = match &found.answer {
            ReadAnswer::Objects(indexes) => indexes.iter().any(withheld),
            ReadAnswer::Object(index) => index.iter().any(withheld),
            // The caller asks only for reads that the replayed plugin declares.
            ReadAnswer::NotDeclared(_) => return Err(lacks("the recorded plugin did not declare this read")),
            ReadAnswer::NotGranted(_) | ReadAnswer::Served(_) | ReadAnswer::Unavailable => false,
        };
        if is_withheld {
            return Err(lacks("no record has the contents of Secrets and objects like them"));
        }
        Ok(found.answer.clone())
    }

    /// Returns the recorded refusal of a read that was not declared, in the host's words of that time.
    fn refusal_of(&self, read: &PluginRead) -> Option<ReadAnswer> {
        let found = self.reads.iter().find(|own| own.read == *read);
        found.map(|own| own.answer.clone()).filter(|answer| matches!(answer, ReadAnswer::NotDeclared(_)))
    }

    /// Checks that the objects of the record show the field at `pointer` of a kind.
    ///
    /// # Errors
    ///
    /// If the recorded plugin did not declare the field.
    pub fn shows(&self, kind: &Kind, pointer: &str) -> Result<(), Unrecorded> {
        let of_kind = self.fields.iter().filter(|fields| fields.kind == *kind);
        if of_kind.flat_map(|fields| &fields.pointers).any(|own| field_covers(own, pointer)) {
            return Ok(());
        }
        let read = shown(&format!("field({pointer:?}) of {} {}", kind.api_version, kind.kind));
        Err(Unrecorded { read, why: "the recorded plugin did not declare this field".to_owned() })
    }

    /// Checks that the objects of the record show all fields of a kind that `manifest` declares.
    ///
    /// # Errors
    ///
    /// If the recorded plugin did not declare one of the fields.
    pub fn shows_whole(&self, kind: &Kind, manifest: &Manifest) -> Result<(), Unrecorded> {
        let rules = manifest.reads.iter().filter(|rule| Kind::new(&rule.api_version, &rule.kind) == *kind);
        rules.flat_map(|rule| &rule.fields).try_for_each(|field| self.shows(kind, field))
    }
}
