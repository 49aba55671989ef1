//! Addresses of files that are good for a while, for whoever has them. Source: docs/opsjob-rest.md 7.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use parking_lot::Mutex;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::json;
use tokio::time::Instant;

use crate::errors::of_request;

/// The Secret of the keys, and the names of the one that signs and of the one before it in there.
pub(crate) const SECRET: &str = "oarlock-rest";
const KEYS: [&str; 2] = ["key", "previous"];
/// Bytes of a key.
const KEY: usize = 32;
/// For how long keys are believed to be the ones.
const KEPT: Duration = Duration::from_secs(30);
/// The time between two reads that fail.
const AGAIN: Duration = Duration::from_secs(2);

/// Signs addresses, and looks at signatures.
pub(crate) struct Signatures {
    client: Client,
    namespace: String,
    ttl: Duration,
    keys: Mutex<Option<(Instant, Vec<Vec<u8>>)>>,
    /// When reading them last failed. Held while they are read: whoever asks has shown no token.
    failed: tokio::sync::Mutex<Option<Instant>>,
}

impl Signatures {
    /// With the keys of the Secret in this namespace.
    pub(crate) fn new(client: Client, namespace: String, ttl: Duration) -> Self {
        Self { client, namespace, ttl, keys: Mutex::default(), failed: tokio::sync::Mutex::default() }
    }

    /// The path of a file of a job, with all that lets it be read until it expires.
    pub(crate) async fn path(&self, job: &str, file: &str, now: i64) -> Result<String, OpsRefusal> {
        let keys = self.keys().await?;
        let expires = now.saturating_add(i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX));
        let key = keys.first().ok_or_else(no_key)?;
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), &text(job, file, expires));
        let signature = URL_SAFE_NO_PAD.encode(tag);
        Ok(format!("/api/v1/artifacts/{job}/{file}?expires={expires}&sig={signature}"))
    }

    /// Whether this signature lets a file be read.
    pub(crate) async fn check(
        &self,
        (job, file): (&str, &str),
        expires: &str,
        signature: &str,
        now: i64,
    ) -> Result<(), OpsRefusal> {
        let refused = |why: &str| {
            Err(OpsRefusal::new(Code::Forbidden, format!("{why}: read the job anew, which has a new address")))
        };
        let Some(expires) = expires.parse::<i64>().ok().filter(|_| expires.bytes().all(|byte| byte.is_ascii_digit()))
        else {
            return refused("expires: no number of seconds");
        };
        let Ok(signature) = URL_SAFE_NO_PAD.decode(signature) else { return refused("sig: no signature") };
        let is_of = |key: &Vec<u8>| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, key);
            hmac::verify(&key, &text(job, file, expires), &signature).is_ok()
        };
        if !self.keys().await?.iter().any(is_of) {
            return refused("sig: not the signature of this address");
        }
        if expires <= now { refused("the address has expired") } else { Ok(()) }
    }

    async fn keys(&self) -> Result<Vec<Vec<u8>>, OpsRefusal> {
        if let Some(keys) = self.kept() {
            return Ok(keys);
        }
        let mut failed = self.failed.lock().await;
        if let Some(keys) = self.kept() {
            return Ok(keys);
        }
        if failed.is_some_and(|at| at.elapsed() < AGAIN) {
            return Err(no_key());
        }
        // Until it has succeeded: the request may be dropped meanwhile.
        *failed = Some(Instant::now());
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = format!("read the Secret {SECRET}, which `oarlock manifests --ops --rest` has");
        let stored = api.get_opt(SECRET).await.map_err(|error| of_request(&error, &what))?;
        let keys = stored.as_ref().map(of_secret).unwrap_or_default();
        if keys.is_empty() {
            return Err(no_key());
        }
        *self.keys.lock() = Some((Instant::now(), keys.clone()));
        *failed = None;
        Ok(keys)
    }

    /// The keys that are still believed to be the ones.
    fn kept(&self) -> Option<Vec<Vec<u8>>> {
        let kept = self.keys.lock().clone();
        kept.filter(|(since, _)| since.elapsed() < KEPT).map(|(_, keys)| keys)
    }
}

/// Makes the first key of addresses, where the Secret of this namespace has none. The host that leads does so, for the servers only read
/// keys. Does nothing where there is no such Secret, as without REST.
///
/// # Errors
/// Why there is no key.
pub async fn make_first_key(client: &Client, namespace: &str) -> Result<(), OpsRefusal> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let stored = api.get_opt(SECRET).await.map_err(|error| of_request(&error, "read the key of addresses"))?;
    // A key that an admin wrote is not replaced.
    let Some(stored) = stored.filter(|stored| stored.data.as_ref().is_none_or(BTreeMap::is_empty)) else {
        return Ok(());
    };
    let mut key = vec![0; KEY];
    SystemRandom::new().fill(&mut key).map_err(|_| no_key())?;
    let data = BTreeMap::from([(KEYS[0].to_owned(), ByteString(key))]);
    let patch = json!({"metadata": {"resourceVersion": stored.metadata.resource_version}, "data": data});
    match api.patch(SECRET, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        // Somebody else has made one.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(of_request(&error, "store the key of addresses")),
    }
}

fn of_secret(secret: &Secret) -> Vec<Vec<u8>> {
    let data = secret.data.as_ref();
    let keys = KEYS.iter().filter_map(|name| data?.get(*name));
    keys.map(|key| key.0.clone()).filter(|key| key.len() >= KEY).collect()
}

fn text(job: &str, file: &str, expires: i64) -> Vec<u8> {
    format!("{job}\n{file}\n{expires}").into_bytes()
}

fn no_key() -> OpsRefusal {
    let words = format!("the Secret {SECRET} has no key of {KEY} bytes: the host makes the first one once it leads");
    OpsRefusal::new(Code::Unreachable, words).after(1)
}
