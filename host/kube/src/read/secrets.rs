//! Reads the Secrets for pulls and pushes of images.

use k8s_openapi::ByteString;
use oarlock_core::object::api_object::{Kind, ObjectKey};
use oarlock_core::object::fields::text;
use oarlock_core::object::key::is_object_name;
use oarlock_core::requests::reads::ReadFailed;

use crate::cluster::Cluster;

/// The type of these Secrets, and their field.
const PULL_SECRET: &str = "kubernetes.io/dockerconfigjson";
const CONFIG: &str = "/data/.dockerconfigjson";

impl Cluster {
    /// Reads the content of a pull secret. Returns `None` if no Secret has this name or the Secret has another type.
    ///
    /// # Errors
    /// If the read fails, with the message of the API server.
    pub async fn pull_secret(&self, namespace: &str, name: &str) -> Result<Option<Vec<u8>>, ReadFailed> {
        if !is_object_name(namespace) || !is_object_name(name) {
            return Ok(None);
        }
        let key =
            ObjectKey { kind: Kind::new("v1", "Secret"), namespace: Some(namespace.to_owned()), name: name.to_owned() };
        let stored = self.link.stored(&key).await?.filter(|secret| text(secret, "/type") == Some(PULL_SECRET));
        let config = stored.as_ref().and_then(|secret| secret.pointer(CONFIG));
        Ok(config.and_then(|config| serde_json::from_value::<ByteString>(config.clone()).ok()).map(|bytes| bytes.0))
    }
}
