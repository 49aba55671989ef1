//! Reads past the cache that fail with a sentence: what flows and OpsJobs ask for in a round.

use oarlock_core::cluster::live_reads::ReadFailure;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use serde_json::Value;

use crate::cluster::Link;
use crate::outcome::{asked_to_wait, sentence};
use crate::transport::call::Transport;
use crate::transport::discovery::DiscoverError;
use crate::transport::list::{Collection, ListError};
use crate::watch::projection::Projection;

/// The reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFailed {
    /// What failed, and the API server's sentence.
    pub message: String,
    /// It will be refused again.
    pub is_refused: bool,
    /// Seconds to wait, if it names them.
    pub retry_after: Option<u32>,
}

impl From<&ListError> for ReadFailed {
    fn from(error: &ListError) -> Self {
        let retry_after = if let ListError::List { source, .. } = error { asked_to_wait(source) } else { None };
        Self { message: sentence(error), is_refused: error.is_refused(), retry_after }
    }
}

impl From<&DiscoverError> for ReadFailed {
    fn from(error: &DiscoverError) -> Self {
        Self { message: sentence(error), is_refused: error.is_refused(), retry_after: None }
    }
}

/// Which objects a list has.
#[derive(Clone, Copy, Default)]
pub(crate) struct Selected<'a> {
    /// All namespaces where `None`.
    pub(crate) namespace: Option<&'a str>,
    /// A label selector.
    pub(crate) labels: Option<&'a str>,
    /// A field selector.
    pub(crate) fields: Option<&'a str>,
}

/// What is kept of a list.
pub(crate) struct Picked<'a, P> {
    /// The fields that are read.
    pub(crate) projection: &'a Projection,
    /// Makes an item of an object.
    pub(crate) pick: P,
    /// No further page is read once more than so many items were kept.
    pub(crate) most: usize,
}

impl Link {
    /// An object as it is stored, where it is.
    pub(crate) async fn stored(&self, object: &ObjectKey) -> Result<Option<Value>, ReadFailed> {
        self.stored_fields(object, &Projection::everything()).await
    }

    /// Returns these fields of an object as it is stored, or `None` if there is no such object.
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
            Err(error) if error.is(404) => Ok(None),
            Err(error) => {
                let retry_after = asked_to_wait(&error);
                Err(ReadFailed { message: told(sentence(&error)), is_refused: error.is(403), retry_after })
            }
        }
    }

    /// The objects of a kind that are stored.
    pub(crate) async fn all_stored<T>(
        &self,
        transport: &Transport,
        kind: &Kind,
        selected: Selected<'_>,
        kept: Picked<'_, impl Fn(Value) -> Option<T>>,
    ) -> Result<Vec<T>, ReadFailed> {
        let resource = self.discovery.resource(transport, kind).await.map_err(|error| ReadFailed::from(&error))?;
        let Selected { namespace, labels, fields } = selected;
        let from = Collection { resource: &resource, namespace, labels, fields };
        let listed = transport.list_until(from, kept.projection, kept.pick, kept.most).await;
        listed.map(|listed| listed.items).map_err(|error| ReadFailed::from(&error))
    }
}
