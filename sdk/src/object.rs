//! Takes a handle on a Kubernetes object and yields typed reads of it. May not
//! copy more of the object than is asked for.

use std::cell::OnceCell;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::condition::{self, Condition};
use crate::{ReadError, backend, wit};

/// How new an answer has to be: as watched, or as a look at the API server
/// shows it. What is decided from an absence is asked [`Freshness::Live`].
pub use crate::wit::Freshness;

/// One Kubernetes object as it stood when the round began.
#[derive(Debug)]
pub struct Object(backend::Object, OnceCell<Option<Owner>>);

/// The controller of an object, from its owner references.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// `apiVersion`, such as `apps/v1`.
    pub api_version: String,
    /// `kind`, such as `ReplicaSet`.
    pub kind: String,
    /// The name.
    pub name: String,
    /// The UID.
    pub uid: String,
    #[serde(default)]
    controller: bool,
}

impl Owner {
    /// The API group: what stands before the slash of `apiVersion`, empty for
    /// the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

impl Object {
    pub(crate) fn new(handle: backend::Object) -> Self {
        Self(handle, OnceCell::new())
    }

    /// `apiVersion`, such as `v1` or `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        self.0.api_version()
    }

    /// `kind`, such as `Pod`.
    #[must_use]
    pub fn kind(&self) -> String {
        self.0.kind()
    }

    /// The namespace; `None` for a cluster-scoped object.
    #[must_use]
    pub fn namespace(&self) -> Option<String> {
        self.0.namespace()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// The UID.
    #[must_use]
    pub fn uid(&self) -> String {
        self.0.uid()
    }

    /// The resource version. Compare for equality only.
    #[must_use]
    pub fn resource_version(&self) -> String {
        self.0.resource_version()
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<String> {
        self.0.label(key)
    }

    /// Whether there is a label of this key, whatever its value.
    #[must_use]
    pub fn has_label(&self, key: &str) -> bool {
        self.label(key).is_some()
    }

    /// The value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<String> {
        self.0.annotation(key)
    }

    /// Whether the object has this finalizer.
    #[must_use]
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.0.has_finalizer(name)
    }

    /// When deletion was asked for, in milliseconds since 1970.
    #[must_use]
    pub fn deletion_time_ms(&self) -> Option<u64> {
        self.0.deletion_time_ms()
    }

    /// Whether the object is being deleted.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.deletion_time_ms().is_some()
    }

    /// The part of the object that a JSON Pointer selects.
    ///
    /// # Errors
    ///
    /// Where the manifest does not declare the field, or it is not a `T`.
    pub fn field<T: DeserializeOwned>(&self, pointer: &str) -> Result<Option<T>, ReadError> {
        self.0.field(pointer)?.map(|text| parse(&text, || format!("{pointer} of the object"))).transpose()
    }

    /// All declared fields of the object. Prefer [`Object::field`]: this copies
    /// them all.
    ///
    /// # Errors
    ///
    /// Where it is not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ReadError> {
        parse(&self.0.json()?, || "the object".to_owned())
    }

    /// The controller: the owner that answers for the object.
    ///
    /// # Errors
    ///
    /// Where the owner references cannot be read.
    pub fn controller(&self) -> Result<Option<&Owner>, ReadError> {
        if let Some(known) = self.1.get() {
            return Ok(known.as_ref());
        }
        let owners: Option<Vec<Owner>> = self.field("/metadata/ownerReferences")?;
        let controller = owners.into_iter().flatten().find(|owner| owner.controller);
        Ok(self.1.get_or_init(|| controller).as_ref())
    }

    /// Whether the condition `Ready` is `True`. The manifest has to declare the
    /// field `/status/conditions`.
    ///
    /// # Errors
    ///
    /// Where the conditions cannot be read.
    pub fn is_ready(&self) -> Result<bool, ReadError> {
        Ok(self.condition("Ready")?.is_some_and(|ready| ready.is_true()))
    }

    /// The condition of this type. The manifest has to declare the field
    /// `/status/conditions`.
    ///
    /// # Errors
    ///
    /// Where the conditions cannot be read.
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

/// Looks up one object by name; compare its UID where that matters.
///
/// # Errors
///
/// Where the manifest does not declare the kind, or the host has to look first.
pub fn get(object: &wit::ObjectRef, freshness: Freshness) -> Result<Option<Object>, ReadError> {
    Ok(backend::get(object, freshness)?.map(Object::new))
}

/// Whether the cluster serves this kind, which need not be declared.
///
/// # Errors
///
/// Where the host has to ask first, because it did not within a minute.
pub fn serves(api_version: &str, kind: &str) -> Result<bool, ReadError> {
    Ok(backend::serves(api_version, kind)?)
}

impl wit::ObjectRef {
    /// Names an object of a kind, without a UID.
    #[must_use]
    pub fn new(api_version: &str, kind: &str, namespace: Option<String>, name: &str) -> Self {
        Self { api_version: api_version.into(), kind: kind.into(), namespace, name: name.into(), uid: None }
    }
}

/// Reads JSON text as a `T`, or says what it was that is none.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, what: impl Fn() -> String) -> Result<T, ReadError> {
    serde_json::from_str(text).map_err(|source| ReadError::Malformed { what: what(), source })
}
