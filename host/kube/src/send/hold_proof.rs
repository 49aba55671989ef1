//! The keys that prove holds on pods, and the adoption of unproved holds that an earlier version of the host wrote.
//!
//! The keys are in a Secret in the namespace of the host. A host reads them before it reads pods. The leader makes the first key. Source:
//! docs/operationjob.md 3.7.12.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt as _, stream};
use oarlock_core::object::api_object::{Kind, Object, ObjectKey};
use oarlock_core::object::hold_keys::{FEWEST_KEY_BYTES, HoldKeys, HoldOf};
use oarlock_core::operation_job::holds::{HELD, HOLD, IS_HELD, annotation_pointer};
use oarlock_core::requests::reads::ReadFailed;
use oarlock_core::requests::writes::{Lane, Stopped, Write};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::Cluster;
use crate::lease::fence::Fence;
use crate::link::Link;
use crate::read::past_cache::{ListPick, ListSelection};
use crate::send::write::Purpose;
use crate::transport::projection::Projection;
use crate::transport::shares::WriteOwner;

/// The Secret with the keys.
pub const HOLD_SECRET: &str = "oarlock-holds";
/// The names of the keys in the Secret: the key that proves holds, and the previous key.
pub const HOLD_KEYS: [&str; 2] = ["key", "previous"];
/// The policy that protected holds before keys proved them, and the policy's binding.
pub const OLD_POLICY: &str = "pod-holds.oarlock.dev";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";
/// The most lists of pods until no pod has a hold to adopt. Other clients may write to the pods meanwhile.
const ADOPT_TRIES: usize = 10;
/// The wait between two such lists after a failed write.
const ADOPT_AGAIN: Duration = Duration::from_millis(500);
/// The number of pods that the host writes at once.
const AT_ONCE: usize = 16;
/// The wait before the host reads the keys again.
const KEYS_AGAIN: Duration = Duration::from_secs(2);
/// The time after which a host that does not lead makes the first key. A leader that knows a key stores it again within [`KEYS_EVERY`].
pub const KEYS_MADE_WITHIN: Duration = Duration::from_secs(60);
/// The interval at which the leader checks the Secret. A `kubectl replace` with the printed Secret empties it.
pub const KEYS_EVERY: Duration = Duration::from_secs(20);

/// The reason why a host cannot distinguish its holds from annotations of other writers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldKeysError {
    /// The keys are not known. Another read may help.
    #[error("{0}")]
    Unknown(String),
    /// The Secret has no key yet.
    #[error("the Secret {HOLD_SECRET} has no key yet: the host that leads makes it")]
    NotMade,
    /// The Secret has other keys than this process knows.
    #[error("the keys in the Secret {HOLD_SECRET} were changed: this process has to be started again")]
    Changed,
}

impl Cluster {
    /// Proves holds of pods from now on with the keys of the Secret in this namespace. The host ignores holds that these keys do not prove.
    /// Call this before any watch begins.
    pub fn prove_holds_in(&self, namespace: &str) {
        *self.link.hold_proof.namespace.lock() = Some(namespace.to_owned());
    }

    /// Reads the keys. Does nothing if the host does not prove holds.
    ///
    /// # Errors
    /// If the keys are unknown, not made yet, or have changed.
    pub async fn load_hold_keys(&self) -> Result<(), HoldKeysError> {
        let Some(secret) = self.hold_secret() else { return Ok(()) };
        let (_, stored) = self.link.stored_keys(&secret).await?;
        if stored.is_empty() { Err(HoldKeysError::NotMade) } else { self.know(stored) }
    }

    /// Reads the keys for the leader. The leader makes the first key, and stores its known keys again if the Secret has lost them. Other
    /// hosts leave this to the leader, because the leader may know the key that proves the current holds.
    ///
    /// # Errors
    /// If the keys are unknown, cannot be stored, or have changed.
    pub async fn keep_hold_keys(&self) -> Result<(), HoldKeysError> {
        let Some(secret) = self.hold_secret() else { return Ok(()) };
        let (found, mut stored) = self.link.stored_keys(&secret).await?;
        if stored.is_empty() {
            let known = self.link.hold_proof.keys.lock().clone();
            stored = if known.is_empty() { vec![new_key().map_err(HoldKeysError::Unknown)?] } else { known };
            self.link.store_keys(&secret, found, &stored).await?;
        }
        self.know(stored)
    }

    /// Reads the keys until they are known. The leader makes the first key. A leader of an earlier version makes no key, and it leads until
    /// this host is ready. So this host makes the key if no key exists after [`KEYS_MADE_WITHIN`].
    pub async fn await_hold_keys(&self) {
        let begun = Instant::now();
        let mut is_told = false;
        while self.lacks_hold_keys() {
            let known = self.link.hold_proof.known.notified();
            let read = match self.load_hold_keys().await {
                Err(HoldKeysError::NotMade) if begun.elapsed() >= KEYS_MADE_WITHIN => self.keep_hold_keys().await,
                read => read,
            };
            match read {
                Ok(()) => return,
                Err(HoldKeysError::NotMade) if is_told => {}
                Err(HoldKeysError::NotMade) => {
                    is_told = true;
                    tracing::info!("waiting for the leading host to create the key of holds");
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to read the keys of holds, so the host cannot recognize its holds; retrying")
                }
            }
            // The term of this process may have made the key meanwhile.
            let _ = timeout(KEYS_AGAIN, known).await;
        }
    }

    /// Returns the Secret of the keys, if the host proves holds.
    fn hold_secret(&self) -> Option<ObjectKey> {
        let namespace = self.link.hold_proof.namespace.lock().clone()?;
        Some(ObjectKey { kind: Kind::new("v1", "Secret"), namespace: Some(namespace), name: HOLD_SECRET.to_owned() })
    }

    /// Takes the stored keys as the known keys, or returns an error if they have changed.
    fn know(&self, stored: Vec<Vec<u8>>) -> Result<(), HoldKeysError> {
        let mut known = self.link.hold_proof.keys.lock();
        match known.first() {
            None => {
                *self.link.objects.hold_keys.write() = HoldKeys::of(stored.iter().map(Vec::as_slice));
                *known = stored;
                self.link.hold_proof.known.notify_waiters();
                Ok(())
            }
            Some(proves) if stored.first() == Some(proves) => Ok(()),
            Some(_) => Err(HoldKeysError::Changed),
        }
    }

    /// Proves the holds that a host of an earlier version wrote, if the old policy is still in force. That policy let only hosts write
    /// holds. Returns the number of pods with such holds that could not be written, with the last reason.
    ///
    /// # Errors
    /// If the host cannot find the pods with such holds.
    pub async fn adopt_holds(&self, fence: &Fence) -> Result<Option<(usize, String)>, ReadFailed> {
        let proof = &self.link.hold_proof;
        if proof.namespace.lock().is_none() {
            return Ok(None);
        }
        if !self.link.is_old_policy_bound().await? {
            self.warn_of_unadopted_holds();
            return Ok(None);
        }
        let (mut adopted, mut left) = (0, None);
        for _ in 0..ADOPT_TRIES {
            let unproved = self.link.unproved_holds().await?;
            if unproved.is_empty() || !fence.allows() {
                left = None;
                break;
            }
            let count = unproved.len();
            let written =
                stream::iter(unproved).map(|write| async move { self.link.write(&write, Lane::Change, fence).await });
            let results: Vec<Result<Value, Stopped>> = written.buffer_unordered(AT_ONCE).collect().await;
            let failed: Vec<Stopped> = results.into_iter().filter_map(Result::err).collect();
            adopted += count - failed.len();
            let is_refused = |why: &Stopped| matches!(why, Stopped::Refused { .. });
            left = failed.last().map(|why| (failed.len(), describe(why)));
            if failed.iter().all(is_refused) && !failed.is_empty() {
                break;
            }
            if !failed.is_empty() {
                sleep(ADOPT_AGAIN).await;
            }
        }
        tracing::info!(pods = adopted, "adopted and proved holds of an earlier version of the host");
        if let Some((pods, why)) = &left {
            tracing::warn!(pods, why, "failed to prove holds of an earlier version of the host; the next term retries");
        }
        *proof.left.lock() = left.clone();
        Ok(left)
    }

    /// Logs the number of pods with holds of an earlier version that the host never removes.
    fn warn_of_unadopted_holds(&self) {
        let is_labelled = |pod: &Object| pod.labels.get(HELD) == Some(IS_HELD);
        let pods = self.store().all(&Kind::pod(), None);
        let strays = pods.iter().filter(|pod| !pod.stray_holds.is_empty() && is_labelled(pod)).count();
        if strays > 0 {
            tracing::warn!(
                pods = strays,
                "pods have holds that no key proves, and the policy {OLD_POLICY} is not in force: the host does not remove these holds; \
                 `oarlock holds -A --unproved` lists them"
            );
        }
    }

    /// Returns the advice to delete the old policy, or the reason why it is still needed. Returns `None` if it is not installed.
    pub fn old_hold_policy(&self) -> Option<String> {
        if let Some((pods, why)) = &*self.link.hold_proof.left.lock() {
            return Some(format!(
                "{OLD_POLICY} has to stay, for {pods} pods have holds that could not be proved: {why}"
            ));
        }
        self.link.hold_proof.is_policy_there.load(Ordering::Relaxed).then(|| {
            format!(
                "the policy {OLD_POLICY} is installed and no longer needed: kubectl delete \
                 validatingadmissionpolicybinding,validatingadmissionpolicy {OLD_POLICY}"
            )
        })
    }

    /// Returns true if the host proves holds and does not know the keys yet.
    pub fn lacks_hold_keys(&self) -> bool {
        self.link.hold_proof.namespace.lock().is_some() && self.link.hold_proof.keys.lock().is_empty()
    }
}

impl Link {
    /// Returns the Secret and its keys.
    async fn stored_keys(&self, secret: &ObjectKey) -> Result<(Option<Value>, Vec<Vec<u8>>), HoldKeysError> {
        let found = self.stored(secret).await.map_err(|failed| unknown(&failed.message))?;
        let keys = found.as_ref().map(keys_of).transpose().map_err(HoldKeysError::Unknown)?.unwrap_or_default();
        Ok((found, keys))
    }

    /// Stores the keys in this Secret at the version that the host read.
    async fn store_keys(
        &self,
        secret: &ObjectKey,
        found: Option<Value>,
        keys: &[Vec<u8>],
    ) -> Result<(), HoldKeysError> {
        let data: Map<String, Value> =
            HOLD_KEYS.iter().zip(keys).map(|(name, key)| ((*name).to_owned(), json!(STANDARD.encode(key)))).collect();
        let write = match found {
            Some(found) => {
                let version = found.pointer("/metadata/resourceVersion");
                Write::patch(secret, json!({"metadata": {"resourceVersion": version}, "data": data}))
            }
            None => Write::Create {
                body: json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
                    "metadata": {"name": secret.name, "namespace": secret.namespace}}),
                object: secret.clone(),
                owner_uid: String::new(),
            },
        };
        let permit = self.limiter.enter(WriteOwner::of_object(secret)).await;
        let purpose = Purpose { whole_reply: true, ..Purpose::default() };
        let stored = self.write_with(&write, permit, || Ok(()), purpose).await;
        stored.map(drop).map_err(|why| unknown(&format!("failed to store the key of holds: {}", describe(&why))))
    }

    /// Returns true if the policy that let only hosts write holds is installed and bound.
    async fn is_old_policy_bound(&self) -> Result<bool, ReadFailed> {
        let of =
            |kind: &str| ObjectKey { kind: Kind::new(ADMISSION, kind), namespace: None, name: OLD_POLICY.to_owned() };
        let policy = async { self.stored(&of("ValidatingAdmissionPolicy")).await };
        let binding = async { self.stored(&of("ValidatingAdmissionPolicyBinding")).await };
        match futures::try_join!(policy, binding) {
            Ok((policy, binding)) => {
                self.hold_proof.is_policy_there.store(policy.is_some(), Ordering::Relaxed);
                Ok(policy.is_some() && binding.is_some_and(|binding| is_in_force(&binding)))
            }
            Err(failed) if failed.is_refused => {
                tracing::warn!(error = failed.message, "failed to adopt the holds of an earlier version of the host");
                Ok(false)
            }
            Err(failed) => Err(failed),
        }
    }

    /// Returns the patches that prove the holds of labelled pods that no key proves.
    async fn unproved_holds(&self) -> Result<Vec<Write>, ReadFailed> {
        let keys = self.objects.hold_keys.read().clone();
        let kind = Kind::pod();
        let label = format!("{HELD}={IS_HELD}");
        let selected = ListSelection { labels: Some(&label), ..ListSelection::default() };
        let pick = |pod: Value| {
            let pod = Object::slim(&pod, &kind, &[])?;
            let of = |job| HoldOf { job, namespace: pod.key.namespace.as_deref().unwrap_or_default(), pod: &pod.uid };
            let unproved = pod
                .annotations
                .iter()
                .filter(|(key, text)| key.strip_prefix(HOLD).is_some_and(|job| !keys.proves(of(job), text)));
            // Other concurrent writes to the pod do not matter.
            let mut steps = vec![json!({"op": "test", "path": "/metadata/uid", "value": pod.uid})];
            for (key, text) in unproved {
                let path = annotation_pointer(key);
                steps.push(json!({"op": "test", "path": path, "value": text}));
                steps.push(json!({"op": "replace", "path": path, "value": text}));
            }
            (steps.len() > 1).then(|| Write::patch(&pod.key, Value::Array(steps)))
        };
        let kept = ListPick { projection: &Projection::of_object(&[]), pick, most: usize::MAX };
        self.all_stored(&kind, selected, kept).await
    }
}

fn unknown(why: &str) -> HoldKeysError {
    HoldKeysError::Unknown(format!(
        "{why} (`oarlock manifests` prints the Secret {HOLD_SECRET} and the right to read it)"
    ))
}

/// Returns true if this binding puts the policy into force everywhere.
fn is_in_force(binding: &Value) -> bool {
    let at = |pointer: &str| binding.pointer(pointer);
    let denies =
        at("/spec/validationActions").and_then(Value::as_array).is_some_and(|all| all.contains(&json!("Deny")));
    denies
        && at("/spec/policyName").is_some_and(|name| name == OLD_POLICY)
        && at("/spec/matchResources").and_then(Value::as_object).is_none_or(Map::is_empty)
        && at("/metadata/deletionTimestamp").is_none()
}

/// Returns the keys in a Secret. The result is empty if the Secret has no key yet.
fn keys_of(secret: &Value) -> Result<Vec<Vec<u8>>, String> {
    let mut keys = Vec::new();
    for name in HOLD_KEYS {
        let Some(text) = secret.pointer(&format!("/data/{name}")).and_then(Value::as_str) else { continue };
        let key = STANDARD.decode(text).ok().filter(|key| key.len() >= FEWEST_KEY_BYTES);
        keys.push(key.ok_or_else(|| {
            format!("the Secret {HOLD_SECRET}: {name}: write {FEWEST_KEY_BYTES} random bytes or more, in base64")
        })?);
    }
    // Without the current key, the previous key would prove holds.
    match secret.pointer("/data/key") {
        None if !keys.is_empty() => Err(format!("the Secret {HOLD_SECRET} has a key `previous` and no `key`")),
        _ => Ok(keys),
    }
}

/// Returns the reason why a write was not made, for a log.
fn describe(why: &Stopped) -> String {
    match why {
        Stopped::Refused { message }
        | Stopped::Unknown { message }
        | Stopped::Blocked { message, .. }
        | Stopped::Forbidden { message, .. } => message.clone(),
        Stopped::Gone => "there is no such object".to_owned(),
        Stopped::Conflict | Stopped::NotSent => "it was changed meanwhile".to_owned(),
        Stopped::Throttled { .. } => "the API server is busy or cannot be reached".to_owned(),
        Stopped::LostLease => "this process leads no more".to_owned(),
    }
}

fn new_key() -> Result<Vec<u8>, String> {
    let mut key = vec![0; FEWEST_KEY_BYTES];
    SystemRandom::new()
        .fill(&mut key)
        .map_err(|_| "failed to get random numbers from the operating system".to_owned())?;
    Ok(key)
}
