//! Builds the answer to `setup`: the objects that a plugin needs to see. The
//! host checks it.

use crate::wit;
use crate::wit::RelationKey;

/// The objects that a plugin needs from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration(pub(crate) wit::Registration);

/// A kind of object that a plugin needs to see next to its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation(wit::Relation);

impl Default for Registration {
    fn default() -> Self {
        Self::new()
    }
}

impl Registration {
    /// Returns a registration that needs nothing but the target.
    #[must_use]
    pub fn new() -> Self {
        Self(wit::Registration { relations: Vec::new(), exclusive_extras: Vec::new() })
    }

    /// Adds a relation.
    #[must_use]
    pub fn relation(mut self, relation: Relation) -> Self {
        self.0.relations.push(relation.0);
        self
    }

    /// Adds the key of an exclusive extra. Its value is the name of an object
    /// that only one target may hold.
    #[must_use]
    pub fn exclusive(mut self, extra: &str) -> Self {
        self.0.exclusive_extras.push(extra.to_owned());
        self
    }
}

impl From<Registration> for wit::Registration {
    fn from(registration: Registration) -> Self {
        registration.0
    }
}

impl Relation {
    /// Begins a relation to Pods. The next call says how they match a target.
    pub fn pods(name: &str) -> Unmatched<'_> {
        Self::objects(name, "v1", "Pod")
    }

    /// Begins a relation to objects of a kind. The next call says how they
    /// match a target.
    pub fn objects<'a>(name: &'a str, api_version: &'a str, kind: &'a str) -> Unmatched<'a> {
        Unmatched { name, api_version, kind }
    }
}

/// A relation that does not say yet how its objects match a target.
#[derive(Debug, Clone, Copy)]
#[must_use = "say how the objects are matched to a target"]
pub struct Unmatched<'a> {
    name: &'a str,
    api_version: &'a str,
    kind: &'a str,
}

impl Unmatched<'_> {
    /// Matches objects by a label. Its value has to be the name of the target,
    /// or an exclusive extra that the target has stored.
    #[must_use]
    pub fn by_label(self, key: &str) -> Relation {
        self.by(RelationKey::Label(key.to_owned()))
    }

    /// Matches the object whose name the target has stored under this key.
    #[must_use]
    pub fn by_extra(self, key: &str) -> Relation {
        self.by(RelationKey::Extra(key.to_owned()))
    }

    /// Matches objects whose string at this JSON Pointer is the name of the
    /// target. For a target Node, Pods by `/spec/nodeName` may be in any
    /// namespace.
    #[must_use]
    pub fn by_field(self, pointer: &str) -> Relation {
        self.by(RelationKey::Field(pointer.to_owned()))
    }

    /// Matches the object in the namespace of the job whose name is in the
    /// job's parameters, at this JSON Pointer.
    #[must_use]
    pub fn by_parameter(self, pointer: &str) -> Relation {
        self.by(RelationKey::Parameter(pointer.to_owned()))
    }

    /// Matches objects with an owner reference to the job.
    #[must_use]
    pub fn owned_by_job(self) -> Relation {
        self.by(RelationKey::OwnerIsJob)
    }

    /// Matches objects with an owner reference to the target.
    #[must_use]
    pub fn owned_by_target(self) -> Relation {
        self.by(RelationKey::OwnerIsTarget)
    }

    /// Matches the possible successors of the target: objects of the controller
    /// that the target had when it started. They were created after the target
    /// was evicted or deleted, or else after its start. There are at most 16,
    /// oldest first, without those that other targets claimed. To find all
    /// siblings, match a label instead.
    #[must_use]
    pub fn same_controller(self) -> Relation {
        self.by(RelationKey::SameController)
    }

    /// Matches by a rule that the contract does not list. Takes its name, and
    /// its arguments as JSON. A host that does not know the name refuses the
    /// plugin.
    #[must_use]
    pub fn by_other(self, name: &str, arguments: &str) -> Relation {
        self.by(RelationKey::Other((name.to_owned(), arguments.to_owned())))
    }

    fn by(self, by: RelationKey) -> Relation {
        let Unmatched { name, api_version, kind } = self;
        Relation(wit::Relation { name: name.into(), api_version: api_version.into(), kind: kind.into(), by })
    }
}
