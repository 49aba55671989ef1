//! Typed reads of a Kubernetes object. A read copies only the requested part.

use std::cell::OnceCell;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::condition::{self, Condition};
use crate::{ReadError, backend, wit};

/// The freshness of a read: from the watch, or live from the API server. If a
/// decision depends on the absence of an object, use [`Freshness::Live`].
pub use crate::wit::Freshness;

/// A Kubernetes object in its state at the beginning of the round.
#[derive(Debug)]
pub struct Object(backend::Object, OnceCell<Option<Owner>>);

/// The controller of an object, from its owner references.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The `apiVersion` of the controller, such as `apps/v1`.
    pub api_version: String,
    /// The `kind` of the controller, such as `ReplicaSet`.
    pub kind: String,
    /// The name of the controller.
    pub name: String,
    /// The UID of the controller.
    pub uid: String,
    #[serde(default)]
    controller: bool,
}

impl Owner {
    /// Returns the API group: the part of `apiVersion` before the slash. It is
    /// empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

impl Object {
    pub(crate) fn new(handle: backend::Object) -> Self {
        Self(handle, OnceCell::new())
    }

    /// Returns the `apiVersion`, such as `v1` or `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        self.0.api_version()
    }

    /// Returns the `kind`, such as `Pod`.
    #[must_use]
    pub fn kind(&self) -> String {
        self.0.kind()
    }

    /// Returns the namespace, or `None` for a cluster-scoped object.
    #[must_use]
    pub fn namespace(&self) -> Option<String> {
        self.0.namespace()
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// Returns the UID.
    #[must_use]
    pub fn uid(&self) -> String {
        self.0.uid()
    }

    /// Returns the resource version. Compare it only for equality.
    #[must_use]
    pub fn resource_version(&self) -> String {
        self.0.resource_version()
    }

    /// Returns the value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<String> {
        self.0.label(key)
    }

    /// Returns true if the object has a label of this key, with any value.
    #[must_use]
    pub fn has_label(&self, key: &str) -> bool {
        self.label(key).is_some()
    }

    /// Returns the value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<String> {
        self.0.annotation(key)
    }

    /// Returns true if the object has this finalizer.
    #[must_use]
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.0.has_finalizer(name)
    }

    /// Returns the deletion timestamp, in milliseconds since 1970.
    #[must_use]
    pub fn deletion_time_ms(&self) -> Option<u64> {
        self.0.deletion_time_ms()
    }

    /// Returns true if the object is being deleted.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.deletion_time_ms().is_some()
    }

    /// Returns the part of the object that a JSON Pointer selects.
    ///
    /// # Errors
    ///
    /// If the manifest does not declare the field, or the value is not a `T`.
    pub fn field<T: DeserializeOwned>(&self, pointer: &str) -> Result<Option<T>, ReadError> {
        self.0.field(pointer)?.map(|text| parse(&text, || format!("{pointer} of the object"))).transpose()
    }

    /// Returns all declared fields of the object. Prefer [`Object::field`],
    /// because this copies all of them.
    ///
    /// # Errors
    ///
    /// If the fields are not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ReadError> {
        parse(&self.0.json()?, || "the object".to_owned())
    }

    /// Returns the controller: the owner that manages the object.
    ///
    /// # Errors
    ///
    /// If the owner references cannot be read.
    pub fn controller(&self) -> Result<Option<&Owner>, ReadError> {
        if let Some(known) = self.1.get() {
            return Ok(known.as_ref());
        }
        let owners: Option<Vec<Owner>> = self.field("/metadata/ownerReferences")?;
        let controller = owners.into_iter().flatten().find(|owner| owner.controller);
        Ok(self.1.get_or_init(|| controller).as_ref())
    }

    /// Returns true if the condition `Ready` is `True`. The manifest has to
    /// declare the field `/status/conditions`.
    ///
    /// # Errors
    ///
    /// If the conditions cannot be read.
    pub fn is_ready(&self) -> Result<bool, ReadError> {
        Ok(self.condition("Ready")?.is_some_and(|ready| ready.is_true()))
    }

    /// Returns the condition of this type. The manifest has to declare the
    /// field `/status/conditions`.
    ///
    /// # Errors
    ///
    /// If the conditions cannot be read.
    pub fn condition(&self, kind: &str) -> Result<Option<Condition>, ReadError> {
        condition::find(self, kind)
    }
}

impl From<&Object> for wit::ObjectRef {
    fn from(object: &Object) -> Self {
        Self {
            api_version: object.api_version(),
            kind: object.kind(),
            namespace: object.namespace(),
            name: object.name(),
            uid: Some(object.uid()),
        }
    }
}

/// Looks up one object by name. Compare its UID if that matters.
///
/// # Errors
///
/// If the manifest does not declare the kind, or the host needs a live read
/// first.
pub fn get(object: &wit::ObjectRef, freshness: Freshness) -> Result<Option<Object>, ReadError> {
    Ok(backend::get(object, freshness)?.map(Object::new))
}

/// Returns true if the cluster serves this kind. The manifest need not declare
/// the kind.
///
/// # Errors
///
/// If the host has to ask the API server first, because its last answer is
/// older than a minute.
pub fn serves(api_version: &str, kind: &str) -> Result<bool, ReadError> {
    Ok(backend::serves(api_version, kind)?)
}

impl wit::ObjectRef {
    /// Returns a reference to an object of a kind, without a UID.
    #[must_use]
    pub fn new(api_version: &str, kind: &str, namespace: Option<String>, name: &str) -> Self {
        Self { api_version: api_version.into(), kind: kind.into(), namespace, name: name.into(), uid: None }
    }
}

/// Parses JSON text as a `T`. The error names the value.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, what: impl Fn() -> String) -> Result<T, ReadError> {
    serde_json::from_str(text).map_err(|source| ReadError::Malformed { what: what(), source })
}
