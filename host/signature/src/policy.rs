//! The keys that an admin trusts for one plugin.

use crate::digest::Sha256;
use crate::key::{KeyRefused, PublicKey};

/// The most keys of a policy.
const MOST_KEYS: usize = 16;

/// The field `signedBy` of a grant: the trusted keys, and how many of them must have signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustPolicy {
    keys: Vec<PublicKey>,
    threshold: usize,
}

impl TrustPolicy {
    /// Makes a policy of public keys in PEM. A signature counts for its key, so two signatures of one key count once.
    ///
    /// # Errors
    /// If a key cannot be used or is there twice, or if the threshold is 0 or more than the number of keys.
    pub fn new<'a>(pems: impl IntoIterator<Item = &'a str>, threshold: usize) -> Result<Self, KeyRefused> {
        let mut keys: Vec<PublicKey> = Vec::new();
        for (place, pem) in (1_usize..).zip(pems) {
            if place > MOST_KEYS {
                return Err(KeyRefused(format!("signedBy has more than {MOST_KEYS} keys")));
            }
            let key = PublicKey::from_pem(pem);
            let key = key.map_err(|why| KeyRefused(format!("key {place} of signedBy: {why}")))?;
            if let Some(same) = keys.iter().position(|known| *known == key) {
                let same = same.saturating_add(1);
                return Err(KeyRefused(format!("keys {same} and {place} of signedBy are the same key; remove one")));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(KeyRefused("signedBy has no key; add one, or remove signedBy".to_owned()));
        }
        if threshold == 0 || threshold > keys.len() {
            let count = keys.len();
            return Err(KeyRefused(format!(
                "the threshold of signedBy is {threshold}, and it has {count} keys; use a threshold from 1 to {count}"
            )));
        }
        Ok(Self { keys, threshold })
    }

    /// Returns the trusted keys in their order.
    pub fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    /// Returns how many different keys must have signed.
    pub fn threshold(&self) -> usize {
        self.threshold
    }

    /// Returns the digest of the policy. Two policies with the same keys and threshold have the same digest, whatever their order is. So an
    /// outcome can be cached by the digest of the plugin and this one.
    pub fn digest(&self) -> Sha256 {
        let mut names: Vec<String> = self.keys.iter().map(|key| key.fingerprint().to_string()).collect();
        names.sort();
        Sha256::of(format!("{} of {}", self.threshold, names.join(" ")).as_bytes())
    }
}
