//! The keys by which holds of pods are proved, and the holds of a host that proved none.
//!
//! The keys are in a Secret in the host's namespace. A host reads them before it looks at pods. The one that leads makes the first key.
//! Source: docs/operationjob.md 3.7.12.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt as _, stream};
use oarlock_core::cluster::hold_keys::{FEWEST_KEY_BYTES, HoldKeys, HoldOf};
use oarlock_core::cluster::object::{Kind, Object, ObjectKey};
use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_core::shared::holds::{HELD, HOLD, IS_HELD, annotation_pointer};
use parking_lot::Mutex;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::{Cluster, Link};
use crate::lease::Fence;
use crate::past_cache::{Picked, ReadFailed, Selected};
use crate::transport::shares::WriteOwner;
use crate::watch::projection::Projection;
use crate::write::Purpose;

/// The Secret with the keys.
pub const HOLD_SECRET: &str = "oarlock-holds";
/// The names of the keys in there: the one that proves, and the one before it.
pub const HOLD_KEYS: [&str; 2] = ["key", "previous"];
/// The policy that kept holds before they were proved, and its binding.
pub const OLD_POLICY: &str = "pod-holds.oarlock.dev";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";
/// How often the pods are listed until none has a hold to adopt: others may write to them meanwhile.
const ADOPT_TRIES: usize = 10;
/// Wait between two such lists after a write that failed.
const ADOPT_AGAIN: Duration = Duration::from_millis(500);
/// Pods that are written at once.
const AT_ONCE: usize = 16;
/// Wait before the keys are read again.
const KEYS_AGAIN: Duration = Duration::from_secs(2);
/// Time after which a host that does not lead makes the first key. A host that leads and knows a key stores it again within
/// [`KEYS_EVERY`].
pub const KEYS_MADE_WITHIN: Duration = Duration::from_secs(60);
/// Interval between two looks of the host that leads at the Secret: a `kubectl replace` of the printed one empties it.
pub const KEYS_EVERY: Duration = Duration::from_secs(20);

/// The keys as far as they are known, and the old policy as it was last seen.
#[derive(Default)]
pub(crate) struct HoldProof {
    /// The namespace of the Secret, where holds are proved.
    namespace: Mutex<Option<String>>,
    /// The keys that are known: the one that proves comes first.
    keys: Mutex<Vec<Vec<u8>>>,
    /// Tells that the keys are known.
    known: Notify,
    /// The old policy was seen to be installed.
    is_policy_there: AtomicBool,
    /// How many pods have holds that could not be adopted, and why.
    left: Mutex<Option<(usize, String)>>,
}

/// The reason why a host cannot tell holds from what others write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldKeysError {
    /// The keys are not known, and asking again may help.
    #[error("{0}")]
    Unknown(String),
    /// There is no key yet.
    #[error("the Secret {HOLD_SECRET} has no key yet: the host that leads makes it")]
    NotMade,
    /// The Secret has other keys than this process knows.
    #[error("the keys in the Secret {HOLD_SECRET} were changed: this process has to be started again")]
    Changed,
}

impl Cluster {
    /// Proves holds of pods from now on, by the keys of the Secret in this namespace. Holds that they do not prove are none. To be
    /// called before anything is watched.
    pub fn prove_holds_in(&self, namespace: &str) {
        *self.link.hold_proof.namespace.lock() = Some(namespace.to_owned());
    }

    /// Reads the keys. Does nothing where holds are not proved.
    ///
    /// # Errors
    /// They are not known or not made yet, or are others than before.
    pub async fn load_hold_keys(&self) -> Result<(), HoldKeysError> {
        let Some(secret) = self.hold_secret() else { return Ok(()) };
        let (_, stored) = self.link.stored_keys(&secret).await?;
        if stored.is_empty() { Err(HoldKeysError::NotMade) } else { self.know(stored) }
    }

    /// The same for the host that leads: it makes the first key, and stores the keys that it knows again where they are gone. Another
    /// host leaves that to it, for the one that leads may know the key by which pods are held.
    ///
    /// # Errors
    /// They are not known, cannot be stored, or are others than before.
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

    /// Reads the keys until they are known. The host that leads makes the first one. A host of an earlier version makes none, and leads
    /// until this one is ready: so where none is made for [`KEYS_MADE_WITHIN`], this one makes it.
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
                    tracing::info!("waiting for the host that leads to make the key of holds");
                }
                Err(error) => tracing::warn!(%error, "holds cannot be told from what others write; trying again"),
            }
            // The term of this process may have made it meanwhile.
            let _ = timeout(KEYS_AGAIN, known).await;
        }
    }

    /// The Secret of the keys, where holds are proved.
    fn hold_secret(&self) -> Option<ObjectKey> {
        let namespace = self.link.hold_proof.namespace.lock().clone()?;
        Some(ObjectKey { kind: Kind::new("v1", "Secret"), namespace: Some(namespace), name: HOLD_SECRET.to_owned() })
    }

    /// Knows the keys that are stored, or says that they were changed.
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

    /// Proves the holds that a host of an earlier version wrote, while the policy still is in force that let nobody else write any. Returns
    /// how many pods have such holds and could not be written, with the last reason.
    ///
    /// # Errors
    /// It is not known which pods have such holds.
    pub async fn adopt_holds(&self, fence: &Fence) -> Result<Option<(usize, String)>, ReadFailed> {
        let proof = &self.link.hold_proof;
        if proof.namespace.lock().is_none() {
            return Ok(None);
        }
        if !self.link.is_old_policy_bound().await? {
            self.warn_of_strays();
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
            let written = stream::iter(unproved).map(|write| async move { self.link.write(&write, fence).await });
            let results: Vec<Result<Value, Stopped>> = written.buffer_unordered(AT_ONCE).collect().await;
            let failed: Vec<Stopped> = results.into_iter().filter_map(Result::err).collect();
            adopted += count - failed.len();
            let is_refused = |why: &Stopped| matches!(why, Stopped::Refused { .. });
            left = failed.last().map(|why| (failed.len(), words(why)));
            if failed.iter().all(is_refused) && !failed.is_empty() {
                break;
            }
            if !failed.is_empty() {
                sleep(ADOPT_AGAIN).await;
            }
        }
        tracing::info!(pods = adopted, "holds that a host of an earlier version had written are proved now");
        if let Some((pods, why)) = &left {
            tracing::warn!(
                pods,
                why,
                "holds that a host of an earlier version had written could not be proved; the next term tries again"
            );
        }
        *proof.left.lock() = left.clone();
        Ok(left)
    }

    /// Says on how many pods a host of an earlier version may have left something that nothing takes off.
    fn warn_of_strays(&self) {
        let is_labelled = |pod: &Object| pod.labels.get(HELD) == Some(IS_HELD);
        let pods = self.store().all(&Kind::pod(), None);
        let strays = pods.iter().filter(|pod| !pod.stray_holds.is_empty() && is_labelled(pod)).count();
        if strays > 0 {
            tracing::warn!(
                pods = strays,
                "pods have holds that no key proves, and the policy {OLD_POLICY} is not in force: nothing of them is taken off; \
                 `oarlock holds -A --unproved` lists them"
            );
        }
    }

    /// Returns the advice to delete the old policy, or why it is still needed; `None` where it is not installed.
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

    /// Returns whether holds are proved and the keys are not known yet.
    pub fn lacks_hold_keys(&self) -> bool {
        self.link.hold_proof.namespace.lock().is_some() && self.link.hold_proof.keys.lock().is_empty()
    }
}

impl Link {
    /// Returns the Secret, and the keys in there.
    async fn stored_keys(&self, secret: &ObjectKey) -> Result<(Option<Value>, Vec<Vec<u8>>), HoldKeysError> {
        let found = self.stored(secret).await.map_err(|failed| unknown(&failed.message))?;
        let keys = found.as_ref().map(keys_of).transpose().map_err(HoldKeysError::Unknown)?.unwrap_or_default();
        Ok((found, keys))
    }

    /// Stores the keys in this Secret, as it was found.
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
        stored.map(drop).map_err(|why| unknown(&format!("failed to store the key of holds: {}", words(&why))))
    }

    /// Returns whether the policy is installed and bound, by which only a host could write holds.
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
                tracing::warn!(error = failed.message, "holds of a host of an earlier version are not adopted");
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
        let selected = Selected { labels: Some(&label), ..Selected::default() };
        let pick = |pod: Value| {
            let pod = Object::slim(&pod, &kind, &[])?;
            let of = |job| HoldOf { job, namespace: pod.key.namespace.as_deref().unwrap_or_default(), pod: &pod.uid };
            let unproved = pod
                .annotations
                .iter()
                .filter(|(key, text)| key.strip_prefix(HOLD).is_some_and(|job| !keys.proves(of(job), text)));
            // Other writes to the pod meanwhile do not matter.
            let mut steps = vec![json!({"op": "test", "path": "/metadata/uid", "value": pod.uid})];
            for (key, text) in unproved {
                let path = annotation_pointer(key);
                steps.push(json!({"op": "test", "path": path, "value": text}));
                steps.push(json!({"op": "replace", "path": path, "value": text}));
            }
            (steps.len() > 1).then(|| Write::patch(&pod.key, Value::Array(steps)))
        };
        let kept = Picked { projection: &Projection::of_object(&[]), pick, most: usize::MAX };
        self.all_stored(&self.transport, &kind, selected, kept).await
    }
}

fn unknown(why: &str) -> HoldKeysError {
    HoldKeysError::Unknown(format!(
        "{why} (`oarlock manifests` prints the Secret {HOLD_SECRET} and the right to read it)"
    ))
}

/// True of a binding by which the policy is in force everywhere.
fn is_in_force(binding: &Value) -> bool {
    let at = |pointer: &str| binding.pointer(pointer);
    let denies =
        at("/spec/validationActions").and_then(Value::as_array).is_some_and(|all| all.contains(&json!("Deny")));
    denies
        && at("/spec/policyName").is_some_and(|name| name == OLD_POLICY)
        && at("/spec/matchResources").and_then(Value::as_object).is_none_or(Map::is_empty)
        && at("/metadata/deletionTimestamp").is_none()
}

/// The keys in a Secret; none where it has none yet.
fn keys_of(secret: &Value) -> Result<Vec<Vec<u8>>, String> {
    let mut keys = Vec::new();
    for name in HOLD_KEYS {
        let Some(text) = secret.pointer(&format!("/data/{name}")).and_then(Value::as_str) else { continue };
        let key = STANDARD.decode(text).ok().filter(|key| key.len() >= FEWEST_KEY_BYTES);
        keys.push(key.ok_or_else(|| {
            format!("the Secret {HOLD_SECRET}: {name}: write {FEWEST_KEY_BYTES} random bytes or more, in base64")
        })?);
    }
    // Without the key that proves, the one before it would prove.
    match secret.pointer("/data/key") {
        None if !keys.is_empty() => Err(format!("the Secret {HOLD_SECRET} has a key `previous` and no `key`")),
        _ => Ok(keys),
    }
}

/// Why a write was not made, for a log.
fn words(why: &Stopped) -> String {
    match why {
        Stopped::Refused { message } | Stopped::Unknown { message } | Stopped::Blocked { message, .. } => {
            message.clone()
        }
        Stopped::Gone => "there is no such object".to_owned(),
        Stopped::Conflict | Stopped::NotSent => "it was changed meanwhile".to_owned(),
        Stopped::Throttled { .. } => "the API server is busy".to_owned(),
        Stopped::LostLease => "this process leads no more".to_owned(),
    }
}

fn new_key() -> Result<Vec<u8>, String> {
    let mut key = vec![0; FEWEST_KEY_BYTES];
    SystemRandom::new().fill(&mut key).map_err(|_| "this machine gives no random numbers".to_owned())?;
    Ok(key)
}
