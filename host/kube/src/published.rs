//! The ConfigMap in which the leader says what it serves.

use oarlock_core::child::fields::text;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_core::ops_job::published::{KEY, PUBLISHED};
use serde_json::json;

use crate::cluster::Cluster;
use crate::lease::Fence;
use crate::past_cache::ReadFailed;

fn key(namespace: &str) -> ObjectKey {
    ObjectKey { kind: Kind::new("v1", "ConfigMap"), namespace: Some(namespace.to_owned()), name: PUBLISHED.to_owned() }
}

impl Cluster {
    /// Reads the text that the leader of this namespace has published; `None` if there is none.
    ///
    /// # Errors
    /// The API server's sentence.
    pub async fn published(&self, namespace: &str) -> Result<Option<String>, ReadFailed> {
        let stored = self.link.stored(&key(namespace)).await?;
        let pointer = format!("/data/{KEY}");
        Ok(stored.as_ref().and_then(|stored| text(stored, &pointer)).map(str::to_owned))
    }

    /// Publishes this text. The ConfigMap has to be there.
    ///
    /// # Errors
    /// The reason why it is not known to be written.
    pub async fn publish(&self, namespace: &str, text: String, fence: &Fence) -> Result<(), Stopped> {
        let write = Write::patch(&key(namespace), json!({"data": {KEY: text}}));
        self.link.write(&write, fence).await.map(drop)
    }
}
