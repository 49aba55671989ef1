//! Fetches a plugin from a registry. [`ArtefactRepository::fetch_verified`] has all steps in their order.

use oarlock_signature::{ArtefactManifest, SignatureEvidence, Signers, TrustPolicy, Untrusted, UntrustedReason};

use crate::content::content;
use crate::copy::{Destination, Registries};
use crate::failed::{CopyFailed, Fault};
use crate::image::Version;
use crate::manifest::MANIFEST;
use crate::referrers::collect;
use crate::repository::Repository;
use crate::sink::ComponentSink;

/// A plugin in a repository of a registry.
#[derive(Debug)]
pub struct ArtefactRepository {
    pub(crate) repository: Repository,
}

/// A plugin that a policy accepted.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The manifest, with its digest, and the digest and size of the component.
    pub manifest: ArtefactManifest,
    /// The trusted keys that signed the manifest. It is `None` if the reference pins the digest and there is no policy.
    pub signers: Option<Signers>,
    /// All signatures. They can be judged again by another policy, without the registry, and kept as a sidecar.
    pub evidence: SignatureEvidence,
}

/// The reason why a plugin was not fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchReason {
    /// The registry does not serve the plugin: it is down, slow, refuses the credentials, or its content is wrong.
    SourceUnavailable,
    /// The image is not a plugin, or its component is too large.
    NotAWasmArtefact,
    /// The policy does not accept the plugin.
    Untrusted(UntrustedReason),
}

impl FetchReason {
    /// Returns the reason as a word in CamelCase.
    pub fn as_str(self) -> &'static str {
        match self {
            FetchReason::SourceUnavailable => "SourceUnavailable",
            FetchReason::NotAWasmArtefact => "NotAWasmArtefact",
            FetchReason::Untrusted(reason) => reason.as_str(),
        }
    }
}

/// The failure of a fetch. Its message names the image, the cause and the fix, and no secret.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct FetchFailed {
    reason: FetchReason,
    message: String,
    for_now: bool,
}

impl FetchFailed {
    fn new(reason: FetchReason, message: String) -> Self {
        Self { reason, message, for_now: false }
    }

    /// Returns the reason.
    pub fn reason(&self) -> FetchReason {
        self.reason
    }

    /// Returns true if the cause may pass without a change of the image, the grant or the registry.
    pub fn is_for_now(&self) -> bool {
        self.for_now
    }
}

impl From<CopyFailed> for FetchFailed {
    fn from(failed: CopyFailed) -> Self {
        let for_now = failed.is_for_now();
        Self { reason: FetchReason::SourceUnavailable, message: failed.to_string(), for_now }
    }
}

impl Registries {
    /// Returns the repository of a plugin, to fetch the plugin.
    ///
    /// # Errors
    /// If the reference, an allowed host or the certificates are invalid.
    pub fn to_fetch(&self, place: &Destination) -> Result<ArtefactRepository, FetchFailed> {
        Ok(ArtefactRepository { repository: self.repository(place, Fault::Pull)? })
    }

    /// Returns the repository of a plugin, to fetch, push and sign the plugin. Its token allows to push.
    ///
    /// # Errors
    /// If the reference, an allowed host or the certificates are invalid.
    pub fn to_publish(&self, place: &Destination) -> Result<ArtefactRepository, CopyFailed> {
        Ok(ArtefactRepository { repository: self.repository(place, Fault::Push)? })
    }
}

impl ArtefactRepository {
    /// Fetches a plugin, and verifies it before its first byte is requested. `most` is the largest size of the component in bytes.
    ///
    /// 1. Read the manifest of the tag or digest. Its digest is computed from its bytes, and only this digest counts from here on.
    /// 2. Check that the manifest is that of a plugin, and the size of the component.
    /// 3. Collect the signatures.
    /// 4. Verify them with the keys of the policy, and then compare what they sign with the digest.
    /// 5. Count the keys. Transparency logs and timestamps do not count.
    /// 6. Download the component into the sink, and check its digest and size.
    ///
    /// Step 7, the cache of the outcome by digest and [`TrustPolicy::digest`], is the caller's.
    ///
    /// # Errors
    /// If the registry does not serve the plugin, if the image is no plugin, or if the policy does not accept it. A tag needs a policy.
    pub async fn fetch_verified(
        &self,
        policy: Option<&TrustPolicy>,
        most: u64,
        sink: &mut dyn ComponentSink,
    ) -> Result<Verified, FetchFailed> {
        let verified = self.verify(policy, most).await?;
        self.download(&verified.manifest, sink).await?;
        Ok(verified)
    }

    /// Performs the steps 1 to 5 of [`ArtefactRepository::fetch_verified`]: all of them except the download.
    ///
    /// # Errors
    /// As [`ArtefactRepository::fetch_verified`].
    pub async fn verify(&self, policy: Option<&TrustPolicy>, most: u64) -> Result<Verified, FetchFailed> {
        self.check_pinned(policy)?;
        let manifest = self.resolve(most).await?;
        let evidence = self.signatures(&manifest).await?;
        let judged = policy.map(|policy| evidence.judge_manifest(policy, manifest.digest()));
        let signers = judged.transpose().map_err(|refused| self.untrusted(&refused))?;
        Ok(Verified { manifest, signers, evidence })
    }

    /// Performs the steps 1 and 2: reads the manifest of the tag or digest. This one request tells whether a tag has moved.
    ///
    /// # Errors
    /// If the registry does not serve the manifest, or if it is not that of a plugin.
    pub async fn resolve(&self, most: u64) -> Result<ArtefactManifest, FetchFailed> {
        let image = self.repository.image.whole();
        let bytes = self.repository.manifest_bytes(self.repository.image.version.as_str(), MANIFEST).await?;
        let Some(bytes) = bytes else {
            let message = format!("there is no image {image}; push it, or change `image` of the source");
            return Err(FetchFailed::new(FetchReason::SourceUnavailable, message));
        };
        let no = |why| FetchFailed::new(FetchReason::NotAWasmArtefact, format!("image {image} is no plugin: {why}"));
        ArtefactManifest::parse(&bytes, most).map_err(no)
    }

    /// Performs step 3: collects the signatures of a manifest. They are untrusted until they are judged.
    ///
    /// # Errors
    /// If the registry does not answer.
    pub async fn signatures(&self, manifest: &ArtefactManifest) -> Result<SignatureEvidence, FetchFailed> {
        Ok(collect(&self.repository, manifest).await?)
    }

    /// Performs step 6: downloads the component of a manifest into the sink. After an error, the sink has unverified bytes.
    ///
    /// # Errors
    /// If the registry does not serve the component with its digest and size, or if the sink takes no bytes.
    pub async fn download(&self, of: &ArtefactManifest, sink: &mut dyn ComponentSink) -> Result<(), FetchFailed> {
        Ok(self.repository.blob_into(&content(of.component().clone(), of.size()), sink).await?)
    }

    /// Checks that something says which bytes are meant: a digest, or the signers.
    fn check_pinned(&self, policy: Option<&TrustPolicy>) -> Result<(), FetchFailed> {
        let image = &self.repository.image;
        if policy.is_some() || matches!(image.version, Version::Digest(_)) {
            return Ok(());
        }
        let message = format!(
            "image {} has a tag, which anyone who may push can move; add `signedBy` to the grant, or name the digest",
            image.whole()
        );
        Err(FetchFailed::new(FetchReason::Untrusted(UntrustedReason::NotSigned), message))
    }

    fn untrusted(&self, refused: &Untrusted) -> FetchFailed {
        let message = format!("image {}: {refused}", self.repository.image.whole());
        FetchFailed::new(FetchReason::Untrusted(refused.reason()), message)
    }
}
