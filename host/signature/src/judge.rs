//! Counts the trusted keys that signed one plugin, and says why a plugin is not trusted.

use std::collections::BTreeSet;

use crate::artefact::ArtefactManifest;
use crate::bundle;
use crate::digest::{Sha256, shortened_to};
use crate::evidence::SignatureEvidence;
use crate::policy::TrustPolicy;
use crate::simple;

/// The most remarks in a message, and the most characters of each.
const REMARKS: usize = 3;
const REMARK: usize = 200;

/// The plugin whose signatures are judged.
pub(crate) struct SignedPlugin<'a> {
    /// The digest of its manifest, if it has one.
    pub(crate) manifest: Option<&'a Sha256>,
    /// The bytes of the file, if the plugin is a file.
    pub(crate) file: Option<&'a [u8]>,
}

/// The result of one signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SignatureOutcome {
    /// The key at this place of the policy signed the plugin.
    By(usize),
    /// A trusted key signed this digest, which is not that of the plugin.
    ForOther(String),
    /// No trusted key made the signature.
    Stranger,
    /// The entry is no signature of a plugin, or cannot be read.
    NotCounted(String),
}

impl SignatureOutcome {
    pub(crate) fn not_counted(why: String) -> Self {
        Self::NotCounted(why)
    }
}

/// The trusted keys that signed a plugin. Only a judge makes this value, so it is the proof of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signers {
    fingerprints: Vec<Sha256>,
}

impl Signers {
    /// Returns the fingerprint of each key, in the order of the policy.
    pub fn fingerprints(&self) -> &[Sha256] {
        &self.fingerprints
    }
}

/// The reason why a policy does not accept a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UntrustedReason {
    /// Nothing signs the plugin.
    NotSigned,
    /// A trusted key signed another digest: an attack, or a mistake in a copy.
    SignatureForOther,
    /// There are signatures, and no trusted key made them.
    SignedByNobodyTrusted,
    /// Trusted keys signed the plugin, but fewer than the threshold.
    TooFewSigners,
}

impl UntrustedReason {
    /// Returns the reason as a word in CamelCase.
    pub fn as_str(self) -> &'static str {
        match self {
            UntrustedReason::NotSigned => "NotSigned",
            UntrustedReason::SignatureForOther => "SignatureForOther",
            UntrustedReason::SignedByNobodyTrusted => "SignedByNobodyTrusted",
            UntrustedReason::TooFewSigners => "TooFewSigners",
        }
    }
}

/// The refusal of a plugin by a policy, with a sentence that names the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Untrusted {
    reason: UntrustedReason,
    message: String,
}

impl Untrusted {
    /// Returns the reason.
    pub fn reason(&self) -> UntrustedReason {
        self.reason
    }
}

/// The results of all signatures of one plugin.
#[derive(Default)]
struct Tally {
    signers: BTreeSet<usize>,
    others: BTreeSet<String>,
    strangers: usize,
    remarks: Vec<String>,
}

impl Tally {
    fn count(&mut self, outcome: SignatureOutcome) {
        match outcome {
            SignatureOutcome::By(key) => _ = self.signers.insert(key),
            SignatureOutcome::ForOther(digest) => _ = self.others.insert(digest),
            SignatureOutcome::Stranger => self.strangers = self.strangers.saturating_add(1),
            SignatureOutcome::NotCounted(why) => self.remarks.push(why),
        }
    }

    /// Returns the remarks as the end of a message.
    fn remarks(&self) -> String {
        let shown: Vec<String> = self.remarks.iter().take(REMARKS).map(|remark| shortened_to(remark, REMARK)).collect();
        let more = self.remarks.len().saturating_sub(REMARKS);
        match (shown.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!(". Not counted: {}", shown.join("; ")),
            (false, more) => format!(". Not counted: {}; and {more} more", shown.join("; ")),
        }
    }

    fn finish(self, policy: &TrustPolicy, named: &Named<'_>) -> Result<Signers, Untrusted> {
        if self.signers.len() >= policy.threshold() {
            let signers = self.signers.iter().filter_map(|key| policy.keys().get(*key));
            return Ok(Signers { fingerprints: signers.map(crate::key::PublicKey::fingerprint).collect() });
        }
        let Named { what, sign } = named;
        let (reason, message) = if !self.signers.is_empty() {
            let (have, need) = (self.signers.len(), policy.threshold());
            let message = format!(
                "{have} of the keys of signedBy signed {what}, and the threshold is {need}; let another one sign it: {sign}"
            );
            (UntrustedReason::TooFewSigners, message)
        } else if let Some(other) = self.others.first() {
            let message = format!("the signature of {what} is for {other}; sign the plugin that you publish: {sign}");
            (UntrustedReason::SignatureForOther, message)
        } else if self.strangers > 0 {
            let count = self.strangers;
            let message = format!(
                "no key of signedBy made a signature of {what}, which has {count}; add the public key of the signer, or sign it: {sign}"
            );
            (UntrustedReason::SignedByNobodyTrusted, message)
        } else {
            (UntrustedReason::NotSigned, format!("nothing signs {what}; sign it: {sign}"))
        };
        Err(Untrusted { reason, message: format!("{message}{}", self.remarks()) })
    }
}

/// How messages name a plugin, and the command that signs it.
struct Named<'a> {
    what: String,
    sign: &'a str,
}

impl SignatureEvidence {
    /// Judges the plugin with this manifest, which a registry serves.
    ///
    /// # Errors
    /// If fewer keys of the policy signed the manifest than its threshold.
    pub fn judge_manifest(&self, policy: &TrustPolicy, manifest: &Sha256) -> Result<Signers, Untrusted> {
        let named = Named {
            what: format!("manifest {manifest}"),
            sign: "cosign sign --key KEY --signing-config none.json IMAGE@DIGEST",
        };
        self.tally(policy, &SignedPlugin { manifest: Some(manifest), file: None }).finish(policy, &named)
    }

    /// Judges a plugin that is a file, by its sidecar.
    ///
    /// A signature is over the file itself, or over the manifest in the sidecar, if this manifest has the file as its component.
    ///
    /// # Errors
    /// If fewer keys of the policy signed the file than its threshold.
    pub fn judge_file(&self, policy: &TrustPolicy, file: &[u8]) -> Result<Signers, Untrusted> {
        let digest = Sha256::of(file);
        let manifest = self.manifest().map(|bytes| ArtefactManifest::parse(bytes, u64::MAX));
        let (manifest, mismatch) = match manifest {
            Some(Ok(manifest)) if *manifest.component() == digest => (Some(manifest.digest().clone()), None),
            Some(Ok(manifest)) => (None, Some(format!("the manifest beside it is of file {}", manifest.component()))),
            Some(Err(why)) => (None, Some(format!("the manifest beside it is of no plugin: {why}"))),
            None => (None, None),
        };
        let mut tally = self.tally(policy, &SignedPlugin { manifest: manifest.as_ref(), file: Some(file) });
        tally.remarks.extend(mismatch);
        let named = Named {
            what: format!("file {digest}"),
            sign: "cosign sign-blob --key KEY --bundle NAME.wasm.sigstore.json NAME.wasm",
        };
        tally.finish(policy, &named)
    }

    fn tally(&self, policy: &TrustPolicy, wanted: &SignedPlugin<'_>) -> Tally {
        let mut tally = Tally { remarks: self.remarks().to_vec(), ..Tally::default() };
        self.bundles().for_each(|one| tally.count(bundle::check(one, policy, wanted)));
        self.old().iter().for_each(|one| tally.count(simple::check(one, policy, wanted)));
        tally
    }
}
