//! Signs the URLs of files. A URL is valid for a while, for every client that has it. Source: docs/opsjob-rest.md 7.

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

/// The Secret of the signing keys, and the names of the current and the previous key in it.
pub(crate) const SECRET: &str = "oarlock-rest";
const KEYS: [&str; 2] = ["key", "previous"];
/// The bytes of a key.
const KEY: usize = 32;
/// How long the keys are cached.
const KEPT: Duration = Duration::from_secs(30);
/// The wait after a read that failed.
const AGAIN: Duration = Duration::from_secs(2);

/// A file as a signed URL names it. Any client may have written the URL.
pub(crate) struct SignedFile<'a> {
    /// The name of the job.
    pub(crate) job: &'a str,
    /// The name of the file.
    pub(crate) file: &'a str,
    /// The time at which the URL expires, in seconds since 1970.
    pub(crate) expires: &'a str,
    /// The signature of all that.
    pub(crate) signature: &'a str,
}

/// Signs URLs and checks their signatures.
pub(crate) struct Signatures {
    client: Client,
    namespace: String,
    ttl: Duration,
    keys: Mutex<Option<(Instant, Vec<Vec<u8>>)>>,
    /// The time of the last failed read. The lock is held during a read, because the clients of file URLs are not authenticated.
    failed: tokio::sync::Mutex<Option<Instant>>,
}

impl Signatures {
    /// Makes signatures with the keys of the Secret in this namespace.
    pub(crate) fn new(client: Client, namespace: String, ttl: Duration) -> Self {
        Self { client, namespace, ttl, keys: Mutex::default(), failed: tokio::sync::Mutex::default() }
    }

    /// Returns the signed path of a file of a job.
    pub(crate) async fn path(&self, job: &str, file: &str, now: i64) -> Result<String, OpsRefusal> {
        let keys = self.keys().await?;
        let expires = now.saturating_add(i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX));
        let key = keys.first().ok_or_else(no_key)?;
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), &text(job, file, expires));
        let signature = URL_SAFE_NO_PAD.encode(tag);
        Ok(format!("/api/v1/artifacts/{job}/{file}?expires={expires}&sig={signature}"))
    }

    /// Checks that a signature allows to read a file.
    pub(crate) async fn check(&self, of: &SignedFile<'_>, now: i64) -> Result<(), OpsRefusal> {
        let SignedFile { job, file, expires, signature } = *of;
        let refused = |why: &str| {
            Err(OpsRefusal::new(Code::Forbidden, format!("{why}: read the job again to get a new address")))
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

    /// Returns the current key and, after a rotation, the previous one.
    pub(crate) async fn keys(&self) -> Result<Vec<Vec<u8>>, OpsRefusal> {
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
        // This stays set if the request is dropped during the read.
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

    /// Returns the keys that are still cached.
    fn kept(&self) -> Option<Vec<Vec<u8>>> {
        let kept = self.keys.lock().clone();
        kept.filter(|(since, _)| since.elapsed() < KEPT).map(|(_, keys)| keys)
    }
}

/// Makes the first signing key if the Secret of this namespace has none. The leading host calls this, because the servers may only read the
/// keys. Does nothing if the Secret does not exist, as without REST.
///
/// # Errors
/// If the Secret cannot be read or written, or there are no random numbers.
pub async fn make_first_key(client: &Client, namespace: &str) -> Result<(), OpsRefusal> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let stored = api.get_opt(SECRET).await.map_err(|error| of_request(&error, "read the key of addresses"))?;
    // A key that an admin wrote stays.
    let Some(stored) = stored.filter(|stored| stored.data.as_ref().is_none_or(BTreeMap::is_empty)) else {
        return Ok(());
    };
    let mut key = vec![0; KEY];
    SystemRandom::new().fill(&mut key).map_err(|_| no_key())?;
    let data = BTreeMap::from([(KEYS[0].to_owned(), ByteString(key))]);
    let patch = json!({"metadata": {"resourceVersion": stored.metadata.resource_version}, "data": data});
    match api.patch(SECRET, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        // Another host has written a key meanwhile.
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
    let message = format!("the Secret {SECRET} has no key of {KEY} bytes: the host makes the first one once it leads");
    OpsRefusal::new(Code::Unreachable, message).after(1)
}
