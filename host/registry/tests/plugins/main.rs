//! Plugins in a registry: fetched, pushed and signed. The registry is in memory, and some give wrong answers.
#![cfg(test)]

mod liars;
mod published;
mod real;
#[path = "../support/server.rs"]
mod server;
mod signatures;
#[path = "../support/mod.rs"]
mod support;

use axum::http::request::Parts;
use axum::http::{Method, Response};
use bytes::Bytes;
use oarlock_registry::{ArtefactRepository, Destination, FetchFailed, FetchReason, Registries, Timeouts, Verified};
use oarlock_signature::{
    ArtefactManifest, ComponentInfo, Sha256, SigningKey, TrustPolicy, UntrustedReason, new_artefact, new_referrer,
};
use serde_json::{Value, json};
use support::{Fake, INDEX, Image, Lie, MANIFEST, Referrers, honest, response, timeouts};

/// The largest component in these tests, in bytes.
const MOST: u64 = 1_000_000;
const UNAVAILABLE: FetchReason = FetchReason::SourceUnavailable;
const NOT_SIGNED: FetchReason = FetchReason::Untrusted(UntrustedReason::NotSigned);

/// A key that `openssl genpkey` made for tests.
fn key() -> SigningKey {
    SigningKey::from_pem(include_str!("../../../signature/tests/golden/openssl-p256.key")).unwrap()
}

/// Returns the policy that trusts [`key`].
fn policy() -> TrustPolicy {
    TrustPolicy::new([key().public_key().pem().as_str()], 1).unwrap()
}

fn component() -> Vec<u8> {
    support::bytes(7, 300_000)
}

fn info(version: &str) -> ComponentInfo {
    ComponentInfo {
        name: "replace".into(),
        version: version.into(),
        contract: "1.0".into(),
        created: "2026-11-29T04:33:04Z".into(),
        imports: vec!["oarlock:action/host@1.0.0".into()],
        exports: vec!["oarlock:action/handler@1.0.0".into()],
    }
}

/// The content of a registry with one plugin, which can be changed before the registry starts.
struct Plugin {
    image: Image,
    manifest: ArtefactManifest,
}

impl Plugin {
    fn unsigned() -> Self {
        let mut image = Image::default();
        let artefact = new_artefact(&component(), &info("1.0.0"));
        image.blob("", component());
        image.blob("", artefact.config);
        let manifest = ArtefactManifest::parse(&artefact.manifest, MOST).unwrap();
        put(&mut image, artefact.manifest);
        Self { image, manifest }
    }

    fn signed() -> Self {
        let mut plugin = Self::unsigned();
        plugin.add_bundle(key().sign_manifest(plugin.manifest.digest()).unwrap());
        plugin
    }

    fn root(&self) -> String {
        self.manifest.digest().to_string()
    }

    /// Adds a bundle as a referrer. Returns the digest of its manifest.
    fn add_bundle(&mut self, bundle: Vec<u8>) -> String {
        let referrer = new_referrer(&self.manifest, &bundle, "2026-11-29T04:33:04Z");
        self.image.blob("", bundle);
        put(&mut self.image, referrer.manifest)
    }

    /// Serves the plugin with the tag `1`, and lists its referrers.
    async fn serve(mut self, lie: Lie) -> Fake {
        self.image.root = self.root();
        let fake = Fake::serving(self.image, lie).await;
        *fake.store.referrers.lock().unwrap() = Referrers::Supported;
        fake
    }
}

fn put(image: &mut Image, manifest: Vec<u8>) -> String {
    let digest = support::digest(&manifest);
    image.manifests.insert(digest.clone(), (MANIFEST.to_owned(), manifest.into()));
    digest
}

fn place(fake: &Fake, version: &str) -> Destination {
    Destination { image: format!("{}/team/app{version}", fake.address), ..Destination::default() }
}

fn open(fake: &Fake, version: &str) -> ArtefactRepository {
    Registries::with_timeouts(timeouts()).unwrap().to_fetch(&place(fake, version)).unwrap()
}

/// Fetches the tag `1`. Checks that what the registry served untrusted was never requested, and that no bytes of it remain.
async fn fetch(fake: &Fake) -> Result<(Verified, Vec<u8>), FetchFailed> {
    let mut bytes = Vec::new();
    let verified = open(fake, ":1").fetch_verified(Some(&policy()), MOST, &mut bytes).await;
    if let Err(failed) = &verified
        && failed.reason() != UNAVAILABLE
    {
        assert_eq!(fake.asked(&support::digest(&component())), 0, "nothing is requested before it is trusted");
        assert_eq!(bytes, b"");
    }
    verified.map(|verified| (verified, bytes))
}

#[track_caller]
fn assert_failed(failed: &FetchFailed, reason: FetchReason, words: &str) {
    assert_eq!(failed.reason(), reason, "{failed}");
    assert!(failed.to_string().contains(words), "{failed}");
}

/// Makes wrong answers to requests of this method whose path contains this part.
fn about(
    method: Method,
    part: impl Into<String>,
    lie: impl Fn(&Parts, usize) -> Option<Response<axum::body::Body>> + Send + Sync + 'static,
) -> Lie {
    let part = part.into();
    Box::new(move |asked, before| {
        (asked.method == method && asked.uri.path().contains(&part)).then(|| lie(asked, before)).flatten()
    })
}

fn bytes_of(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}
