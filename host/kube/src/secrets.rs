//! The Secrets by which images are pulled and pushed.

use k8s_openapi::ByteString;
use oarlock_core::child::fields::text;
use oarlock_core::cluster::object::{Kind, ObjectKey};
use oarlock_core::job::spec::is_object_name;

use crate::cluster::Cluster;
use crate::past_cache::ReadFailed;

/// The type of such a Secret, and its field.
const PULL_SECRET: &str = "kubernetes.io/dockerconfigjson";
const CONFIG: &str = "/data/.dockerconfigjson";

impl Cluster {
    /// What a pull secret says; `None` where there is none of this name, or it is of another type.
    ///
    /// # Errors
    /// The API server's sentence.
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
