//! Takes what a plugin needs to see and yields its answer to `setup`. May not
//! check it: the host does, and refuses in words.

use crate::wit;
use crate::wit::RelationKey;

/// What the plugin needs from the host.
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
    /// Needs nothing but the target.
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

    /// Adds the key of an extra whose value, the name of an object, only one
    /// target may hold.
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
    /// Pods; say next how they are matched to a target.
    pub fn pods(name: &str) -> Unmatched<'_> {
        Self::objects(name, "v1", "Pod")
    }

    /// Objects of a kind; say next how they are matched to a target.
    pub fn objects<'a>(name: &'a str, api_version: &'a str, kind: &'a str) -> Unmatched<'a> {
        Unmatched { name, api_version, kind }
    }
}

/// A relation that does not say yet how its objects are matched to a target.
#[derive(Debug, Clone, Copy)]
#[must_use = "say how the objects are matched to a target"]
pub struct Unmatched<'a> {
    name: &'a str,
    api_version: &'a str,
    kind: &'a str,
}

impl Unmatched<'_> {
    /// The value of this label is the name of the target, or an exclusive extra
    /// that it has stored.
    #[must_use]
    pub fn by_label(self, key: &str) -> Relation {
        self.by(RelationKey::Label(key.to_owned()))
    }

    /// The name of the object is what the target has stored under this key.
    #[must_use]
    pub fn by_extra(self, key: &str) -> Relation {
        self.by(RelationKey::Extra(key.to_owned()))
    }

    /// The string at this JSON Pointer is the name of the target. Pods by
    /// `/spec/nodeName` are those on a target Node, of every namespace.
    #[must_use]
    pub fn by_field(self, pointer: &str) -> Relation {
        self.by(RelationKey::Field(pointer.to_owned()))
    }

    /// The name of the object is the string that this JSON Pointer selects of
    /// the job's parameters, in the namespace of the job.
    #[must_use]
    pub fn by_parameter(self, pointer: &str) -> Relation {
        self.by(RelationKey::Parameter(pointer.to_owned()))
    }

    /// The object has an owner reference to the job.
    #[must_use]
    pub fn owned_by_job(self) -> Relation {
        self.by(RelationKey::OwnerIsJob)
    }

    /// The object has an owner reference to the target.
    #[must_use]
    pub fn owned_by_target(self) -> Relation {
        self.by(RelationKey::OwnerIsTarget)
    }

    /// The object has the controller that the target had when it started, and
    /// was created since the target was asked to go (since its start, where it
    /// was not). At most 16, oldest first, without those that other targets
    /// took. So it finds successors, and not all siblings: for these match a
    /// label.
    #[must_use]
    pub fn same_controller(self) -> Relation {
        self.by(RelationKey::SameController)
    }

    /// A match that the contract does not list: its name, and its arguments as
    /// JSON. A host that does not know the name refuses the plugin.
    #[must_use]
    pub fn by_other(self, name: &str, arguments: &str) -> Relation {
        self.by(RelationKey::Other((name.to_owned(), arguments.to_owned())))
    }

    fn by(self, by: RelationKey) -> Relation {
        let Unmatched { name, api_version, kind } = self;
        Relation(wit::Relation { name: name.into(), api_version: api_version.into(), kind: kind.into(), by })
    }
}
