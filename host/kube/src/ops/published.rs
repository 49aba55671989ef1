//! The ConfigMap in which the leader publishes the features that it serves.

use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::fields::text;
use oarlock_core::ops_job::published::{KEY, PUBLISHED};
use oarlock_core::requests::reads::ReadFailed;
use oarlock_core::requests::writes::{Lane, Stopped, Write};
use serde_json::json;

use crate::cluster::Cluster;
use crate::lease::fence::Fence;

fn key(namespace: &str) -> ObjectKey {
    ObjectKey { kind: Kind::new("v1", "ConfigMap"), namespace: Some(namespace.to_owned()), name: PUBLISHED.to_owned() }
}

impl Cluster {
    /// Reads the text that the leader of this namespace has published. Returns `None` if there is no text.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn published(&self, namespace: &str) -> Result<Option<String>, ReadFailed> {
        let stored = self.link.stored(&key(namespace)).await?;
        let pointer = format!("/data/{KEY}");
        Ok(stored.as_ref().and_then(|stored| text(stored, &pointer)).map(str::to_owned))
    }

    /// Publishes this text. The ConfigMap must exist.
    ///
    /// # Errors
    /// If it is unknown whether the text was written, with the reason.
    pub async fn publish(&self, namespace: &str, text: String, fence: &Fence) -> Result<(), Stopped> {
        let write = Write::patch(&key(namespace), json!({"data": {KEY: text}}));
        self.link.write(&write, Lane::Change, fence).await.map(drop)
    }
}
