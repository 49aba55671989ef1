//! Signatures of plugins, by keys on the curve P-256. This crate is pure: it reads no file and no registry.
//!
//! ```text
//! key -> policy (keys and a threshold) --+
//! bundle, simple (one signature each) -> evidence (all signatures of one plugin) -> judge -> Signers, or Untrusted
//! artefact (the manifest that is signed) --+
//! ```
//!
//! It reads what cosign writes with a key: bundles of version 0.3 by cosign 3, and the older form of cosign 2. The judge ignores
//! transparency logs and timestamps, so a signature never expires. You revoke a key by removing it from the policy.
//!
//! The judge parses a payload only after it has verified the payload's signature. The hint of a bundle, the `subject` of a manifest and the
//! entry of an index prove nothing.

mod artefact;
mod bundle;
mod digest;
mod evidence;
mod judge;
mod key;
mod pem;
mod policy;
mod simple;

pub use artefact::{
    ArtefactManifest, BUNDLE_TYPE, COMPONENT_TYPE, CONFIG_TYPE, ComponentInfo, EMPTY_CONFIG, MANIFEST_TYPE,
    MOST_MANIFEST, NewArtefact, SIMPLE_TYPE, new_artefact, new_referrer, referrer_entry,
};
pub use digest::{Hash, Sha256, shortened, shortened_to};
pub use evidence::{MOST_BUNDLE, MOST_BUNDLES, MOST_ENTRIES, MOST_SIDECAR, OldSignature, SignatureEvidence};
pub use judge::{Signers, Untrusted, UntrustedReason};
pub use key::{KeyRefused, PublicKey, SigningKey};
pub use policy::TrustPolicy;
