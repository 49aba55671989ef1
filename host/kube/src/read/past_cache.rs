//! Reads past the cache. A failed read returns a message.

use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::requests::live_reads::ReadFailure;
use oarlock_core::requests::reads::ReadFailed;
use serde_json::Value;

use crate::error_chain::error_chain;
use crate::link::Link;
use crate::transport::call::{absent, asked_to_wait};
use crate::transport::discovery::DiscoverError;
use crate::transport::list::{Collection, ListError};
use crate::transport::projection::Projection;

impl From<&ListError> for ReadFailed {
    fn from(error: &ListError) -> Self {
        let retry_after = if let ListError::List { source, .. } = error { asked_to_wait(source) } else { None };
        Self { message: error_chain(error), is_refused: error.is_refused(), retry_after }
    }
}

impl From<&DiscoverError> for ReadFailed {
    fn from(error: &DiscoverError) -> Self {
        Self { message: error_chain(error), is_refused: error.is_refused(), retry_after: None }
    }
}

/// The selection of the objects of a list.
#[derive(Clone, Copy, Default)]
pub(crate) struct ListSelection<'a> {
    /// The namespace, or `None` for all namespaces.
    pub(crate) namespace: Option<&'a str>,
    /// A label selector.
    pub(crate) labels: Option<&'a str>,
    /// A field selector.
    pub(crate) fields: Option<&'a str>,
}

/// The choice of the fields and objects of a list that the host keeps.
pub(crate) struct ListPick<'a, P> {
    /// The fields that the host reads.
    pub(crate) projection: &'a Projection,
    /// The function that makes an item of an object.
    pub(crate) pick: P,
    /// The host reads no further page once it has kept more than this number of items.
    pub(crate) most: usize,
}

impl Link {
    /// Reads an object from the API server. Returns `None` if the object does not exist.
    pub(crate) async fn stored(&self, object: &ObjectKey) -> Result<Option<Value>, ReadFailed> {
        self.stored_fields(object, &Projection::everything()).await
    }

    /// Reads these fields of an object from the API server. Returns `None` if the object does not exist.
    pub(crate) async fn stored_fields(
        &self,
        object: &ObjectKey,
        fields: &Projection,
    ) -> Result<Option<Value>, ReadFailed> {
        let told = |message: String| format!("failed to read {} {}: {message}", object.kind.kind, object.name);
        let not_asked = |failed: ReadFailure| ReadFailed {
            message: told(failed.message),
            is_refused: failed.refused,
            retry_after: None,
        };
        match self.read_fields(object, fields).await.map_err(not_asked)? {
            Ok(document) => Ok(Some(document)),
            // An API server that does not serve the kind for a moment answers 404 too, and says nothing of the object.
            Err(error) if absent(&error, &object.name) => Ok(None),
            Err(error) => {
                let retry_after = asked_to_wait(&error);
                Err(ReadFailed { message: told(error_chain(&error)), is_refused: error.is(403), retry_after })
            }
        }
    }

    /// Lists the stored objects of a kind.
    pub(crate) async fn all_stored<T>(
        &self,
        kind: &Kind,
        selected: ListSelection<'_>,
        kept: ListPick<'_, impl Fn(Value) -> Option<T>>,
    ) -> Result<Vec<T>, ReadFailed> {
        let resource = self.discovery.resource(&self.transport, kind).await;
        let resource = resource.map_err(|error| ReadFailed::from(&error))?;
        let ListSelection { namespace, labels, fields } = selected;
        let from = Collection { resource: &resource, namespace, labels, fields };
        let listed = self.transport.list_until(from, kept.projection, kept.pick, kept.most).await;
        listed.map(|listed| listed.items).map_err(|error| ReadFailed::from(&error))
    }
}
