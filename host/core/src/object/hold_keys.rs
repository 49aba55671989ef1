//! Proves that a hold on a pod is the host's.
//!
//! A user who may patch a pod can write an annotation that looks like a hold, and the host would then remove the listed marks from the pod. So the
//! list ends with a MAC over the UIDs of the job and the pod, the namespace and the marks. An annotation without a valid MAC is not a hold. Source:
//! docs/operationjob.md 3.7.12.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
use oarlock_contract::marks::{HOLD, PROOF, listed, proof};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::object::api_object::{Kind, ObjectKey};

/// The bytes of a MAC.
const MAC: usize = 16;
/// The fewest bytes of a key.
pub const FEWEST_KEY_BYTES: usize = 32;

/// The keys of a host. The host proves its holds with the first key and accepts proofs by any key.
#[derive(Clone, Default)]
pub struct HoldKeys(Vec<Hmac<Sha256>>);

/// Identity of a hold: its job and its pod.
#[derive(Clone, Copy, Debug)]
pub struct HoldOf<'a> {
    /// The UID of the job.
    pub job: &'a str,
    /// The namespace of the pod.
    pub namespace: &'a str,
    /// The UID of the pod.
    pub pod: &'a str,
}

impl std::fmt::Debug for HoldKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl HoldKeys {
    /// Makes the set of these keys. The host proves holds with the first key. Keys that are too short are ignored.
    pub fn of<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let keys = keys.into_iter().filter(|key| key.len() >= FEWEST_KEY_BYTES);
        Self(keys.filter_map(|key| Hmac::new_from_slice(key).ok()).collect())
    }

    /// Returns true if there is no key. The host then proves no holds, and trusts a hold if its pod has the label of held pods. A process that only
    /// reads a cluster has no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if one of these keys proves that the text of an annotation is a hold.
    pub fn proves(&self, hold: HoldOf<'_>, text: &str) -> bool {
        self.prover(hold, text).is_some()
    }

    /// Returns the index of the key that proves this hold, from 0.
    pub fn prover(&self, hold: HoldOf<'_>, text: &str) -> Option<usize> {
        let claimed = URL_SAFE_NO_PAD.decode(proof(text)?).ok().filter(|claimed| claimed.len() == MAC)?;
        self.0.iter().position(|key| mac(key, hold, text).verify_truncated_left(&claimed).is_ok())
    }

    /// Returns the text of a hold with its proof. Keeps a space before the list: it only changes the resourceVersion of the pod.
    pub fn proved(&self, hold: HoldOf<'_>, text: &str) -> String {
        let Some(key) = self.0.first() else { return text.to_owned() };
        let digest = mac(key, hold, text).finalize().into_bytes();
        let proof = URL_SAFE_NO_PAD.encode(digest.get(..MAC).unwrap_or_default());
        let space = if text.starts_with(' ') { " " } else { "" };
        let marks = listed(text).into_iter().chain([format!("{PROOF}{proof}")]);
        format!("{space}{}", json!(marks.collect::<Vec<_>>()))
    }

    /// Returns the body of a patch with a proof in each hold that it writes. Returns `None` if the patch writes no hold.
    pub fn proved_patch(&self, object: &ObjectKey, body: &Value) -> Option<Value> {
        if self.is_empty() || object.kind != Kind::pod() {
            return None;
        }
        let namespace = object.namespace.as_deref()?;
        let mut body = body.clone();
        let mut is_proved = false;
        let mut prove = |key: &str, pod: &str, text: &mut Value| {
            let job = key.strip_prefix(HOLD).zip(text.as_str());
            if let Some((job, list)) = job {
                *text = json!(self.proved(HoldOf { job, namespace, pod }, list));
                is_proved = true;
            }
        };
        if let Value::Array(steps) = &mut body {
            let pod = uid_tested(steps)?;
            for step in steps.iter_mut().filter(|step| step.get("op").is_some_and(|op| op == "replace" || op == "add"))
            {
                let path = step.get("path").and_then(Value::as_str).unwrap_or_default();
                let Some(key) = path.strip_prefix("/metadata/annotations/").map(|key| key.replace("~1", "/")) else {
                    continue;
                };
                step.get_mut("value").into_iter().for_each(|text| prove(&key, &pod, text));
            }
        } else {
            let pod = body.pointer("/metadata/uid").and_then(Value::as_str)?.to_owned();
            let annotations = body.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)?;
            annotations.iter_mut().for_each(|(key, text)| prove(key, &pod, text));
        }
        is_proved.then_some(body)
    }
}

/// Returns the UID that a JSON Patch tests.
fn uid_tested(steps: &[Value]) -> Option<String> {
    let is_test = |step: &&Value| step.get("path").is_some_and(|path| path == "/metadata/uid");
    steps.iter().find(is_test)?.get("value")?.as_str().map(str::to_owned)
}

/// Computes the MAC of a hold. Each part has its length before it, so that two different holds never have the same input.
fn mac(key: &Hmac<Sha256>, hold: HoldOf<'_>, text: &str) -> Hmac<Sha256> {
    let marks = listed(text);
    let mut mac = key.clone();
    for part in [hold.job, hold.namespace, hold.pod].into_iter().chain(marks.iter().map(String::as_str)) {
        mac.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        mac.update(part.as_bytes());
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: HoldOf<'_> = HoldOf { job: "j", namespace: "d", pod: "u" };

    fn keys(names: &[&str]) -> HoldKeys {
        let keys: Vec<Vec<u8>> = names.iter().map(|name| name.repeat(FEWEST_KEY_BYTES).into_bytes()).collect();
        HoldKeys::of(keys.iter().map(Vec::as_slice))
    }

    #[test]
    fn a_hold_is_proved_for_its_job_its_pod_its_namespace_and_its_marks_and_nothing_else() {
        let keys = keys(&["a"]);
        let text = keys.proved(OF, r#"["label:l","finalizer:f"]"#);
        assert!(text.starts_with(r#"["finalizer:f","label:l","mac:"#) && text.len() < 60, "{text}");
        assert!(keys.proves(OF, &text) && keys.proves(OF, &format!(" {text}")));
        for other in [HoldOf { job: "k", ..OF }, HoldOf { namespace: "e", ..OF }, HoldOf { pod: "v", ..OF }] {
            assert!(!keys.proves(other, &text), "{other:?}");
        }
        let proof = proof(&text).unwrap();
        for list in
            [r#"["finalizer:f","#, r#"["finalizer:f","label:l","label:m","#, r#"["finalizer:f","label:","l","#, "["]
        {
            assert!(!keys.proves(OF, &format!(r#"{list}"mac:{proof}"]"#)), "{list}");
        }
        for text in ["", "[]", "{}", r#"["mac:"]"#, r#"["mac:AAAA"]"#, r#"["mac:!"]"#, r#"["finalizer:f","label:l"]"#] {
            assert!(!keys.proves(OF, text), "{text}");
        }
    }

    #[test]
    fn a_key_that_was_replaced_proves_no_more_and_is_still_believed() {
        let (old, both, new) = (keys(&["a"]), keys(&["b", "a"]), keys(&["b"]));
        let text = old.proved(OF, "[]");
        assert!(both.proves(OF, &text) && !new.proves(OF, &text));
        assert!(new.proves(OF, &both.proved(OF, &text)), "what is written anew is by the new key");
        assert!(HoldKeys::of([b"short".as_slice()]).is_empty());
    }

    #[test]
    fn every_patch_of_a_pod_that_writes_a_hold_proves_it_and_no_other_is_changed() {
        let (keys, pod) = (keys(&["a"]), ObjectKey::pod("d", "a"));
        let merge = json!({"metadata": {"uid": "u", "annotations": {"hold.oarlock.dev/j": " []", "hold.oarlock.dev/k": null, "x": "[]"}}});
        let proved = keys.proved_patch(&pod, &merge).unwrap();
        let text = proved["metadata"]["annotations"]["hold.oarlock.dev/j"].as_str().unwrap();
        assert!(text.starts_with(' ') && keys.proves(OF, text), "{text}");
        assert_eq!((&proved["metadata"]["annotations"]["x"], &proved["metadata"]["uid"]), (&json!("[]"), &json!("u")));
        let path = "/metadata/annotations/hold.oarlock.dev~1j";
        let json_patch = json!([{"op": "test", "path": "/metadata/uid", "value": "u"}, {"op": "test", "path": path, "value": "[\"label:l\"]"},
            {"op": "replace", "path": path, "value": "[]"}]);
        let proved = keys.proved_patch(&pod, &json_patch).unwrap();
        assert_eq!(proved[1]["value"], json!("[\"label:l\"]"), "a test compares with what was seen");
        assert!(keys.proves(OF, proved[2]["value"].as_str().unwrap()));
        assert!(keys.proved_patch(&ObjectKey::node("n"), &merge).is_none());
        assert!(keys.proved_patch(&pod, &json!({"metadata": {"uid": "u"}})).is_none());
        assert!(HoldKeys::default().proved_patch(&pod, &merge).is_none());
    }
}
