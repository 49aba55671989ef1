//! The copy of one image: `copy` is the whole way.
//!
//! Takes references, credentials and the hosts that are allowed; yields the reference that the image has now. May not replace what a
//! tag refers to.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use futures::future::try_join_all;
use reqwest::Url;
use rustls::RootCertStore;

use crate::blob::Transfer;
use crate::clients::{Clients, system_roots, with_bundle};
use crate::credentials::Credentials;
use crate::digest::Sha256;
use crate::exchange::Exchange;
use crate::failed::{CopyFailed, Fault};
use crate::gather::{Gathered, gather};
use crate::hosts::{Hosts, is_loopback};
use crate::image::{Image, Version, check_tag};
use crate::login::Login;
use crate::manifest::ImageManifest;
use crate::patience::Patience;
use crate::repository::Repository;
use crate::tally::{CopyProgress, CopyTally};

/// Blobs that are copied at a time.
const AT_A_TIME: usize = 4;

/// The way to registries. Clones share connections.
#[derive(Clone, Debug)]
pub struct Registries {
    clients: Clients,
    roots: RootCertStore,
    patience: Patience,
}

/// Why there is no way to registries.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client cannot be made: {0}")]
pub struct RegistriesFailed(String);

/// What is copied, and where to.
#[derive(Clone, Debug)]
pub struct ImageCopy {
    /// `repository@sha256:…` or `repository:tag`, with the defaults of Docker.
    pub source: String,
    /// They are tried in order, and nobody after them.
    pub source_credentials: Vec<Credentials>,
    /// Hosts, `host[:port]`, that the source may name beside itself for tokens and in redirects.
    pub hosts: Vec<String>,
    /// Where it is published.
    pub target: Destination,
    /// The tag that is used where the one of `target` refers to something else.
    pub otherwise: String,
    /// Where requests to the source go in place of its registry, without credentials in the address: a mirror.
    pub source_base: Option<String>,
    /// The digest by which a runtime knows the image: of its configuration, of a manifest or of the index. Another image is not copied.
    pub runs: Option<String>,
    /// True if the copy takes only the parts of an index that are there.
    pub available: bool,
}

/// The place of an image in a registry that is written to.
#[derive(Clone, Debug, Default)]
pub struct Destination {
    /// `registry/repository:tag`.
    pub image: String,
    /// Those of the registry, where it wants some.
    pub credentials: Option<Credentials>,
    /// Hosts that the registry may name beside itself for tokens, in redirects and for uploads.
    pub hosts: Vec<String>,
    /// Certificates in PEM that are trusted beside those of the system, for this registry only. One of this machine has TLS where
    /// they are given, and none where they are not.
    pub ca: Option<Vec<u8>>,
}

/// What was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The whole reference, with the tag that was used.
    pub target: String,
    /// The digest of the image.
    pub digest: String,
    /// Bytes that were sent: 0 where the tag had the digest already.
    pub bytes: u64,
    /// Bytes of blobs that were there.
    pub skipped: u64,
    /// Platforms of an index that were left out, with the digest of what was not there.
    pub left_out: Vec<String>,
}

/// What the target's tags say.
enum Place<'a> {
    /// The image is there.
    There(&'a str),
    /// There is nothing at this tag.
    Free(&'a str),
}

impl Registries {
    /// The way to registries that the system trusts.
    ///
    /// # Errors
    /// Why the client cannot be made.
    pub fn new() -> Result<Self, RegistriesFailed> {
        Self::with_patience(Patience::default())
    }

    /// The same with other times and tries.
    ///
    /// # Errors
    /// Why the client cannot be made.
    pub fn with_patience(patience: Patience) -> Result<Self, RegistriesFailed> {
        let roots = system_roots();
        let clients = Clients::new(roots.clone(), &patience).map_err(RegistriesFailed)?;
        Ok(Self { clients, roots, patience })
    }

    /// The same, which trusts these authorities, too, for sources and targets alike.
    ///
    /// # Errors
    /// What is wrong with the certificates, in PEM.
    pub fn trusting(self, pem: &[u8]) -> Result<Self, RegistriesFailed> {
        let roots = with_bundle(self.roots, pem).map_err(RegistriesFailed)?;
        let clients = Clients::new(roots.clone(), &self.patience).map_err(RegistriesFailed)?;
        Ok(Self { clients, roots, patience: self.patience })
    }

    /// Copies an image with all that it refers to. `tell` is called after each chunk, so it has to be quick. Dropped, it stops.
    ///
    /// # Errors
    /// Why the tag does not refer to the image.
    pub async fn copy(
        &self,
        copy: &ImageCopy,
        tell: impl Fn(CopyProgress) + Send + Sync,
    ) -> Result<Copied, CopyFailed> {
        let image = Image::parse(&copy.source).map_err(pull)?;
        let target = self.target(&copy.target)?;
        check_tag(&copy.otherwise).map_err(push)?;
        // An image that is there is not asked for.
        if let Version::Digest(digest) = &image.version
            && !copy.available
            && let Place::There(tag) = place(&target, copy, digest).await?
        {
            return Ok(copied(&target, tag, digest));
        }
        let (source, root) = self.source(copy, &image).await?;
        let (tag, gathered) = if copy.available || copy.runs.is_some() {
            // Only then it is known what is to be there.
            let gathered = gather(&source, root, copy.available).await?;
            gathered.check(copy.runs.as_deref()).map_err(|why| pull(format!("image {}: {why}", image.whole())))?;
            match place(&target, copy, gathered.digest()).await? {
                Place::There(tag) => return Ok(gathered.told(copied(&target, tag, gathered.digest()))),
                Place::Free(tag) => (tag, gathered),
            }
        } else {
            match place(&target, copy, &root.digest).await? {
                Place::There(tag) => return Ok(copied(&target, tag, &root.digest)),
                Place::Free(tag) => (tag, gather(&source, root, false).await?),
            }
        };
        let tally = CopyTally::new(gathered.bytes(), &tell);
        let transfer = Transfer { source: &source, target: &target, tally: &tally };
        let next = AtomicUsize::new(0);
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| transfer.copy(&gathered.blobs, &next)).collect();
        try_join_all(workers).await?;
        publish(&target, &gathered, tag, &tally).await?;
        let copied = copied(&target, tag, gathered.digest());
        Ok(gathered.told(Copied { bytes: tally.sent(), skipped: tally.skipped(), ..copied }))
    }

    /// The digest of the image that is there; `None` where nothing is.
    ///
    /// # Errors
    /// Why the registry does not say it.
    pub async fn digest_at(&self, place: &Destination) -> Result<Option<String>, CopyFailed> {
        let target = self.target(place)?;
        let digest = target.digest_of(target.image.version.as_str()).await?;
        Ok(digest.map(|digest| digest.to_string()))
    }

    fn target(&self, place: &Destination) -> Result<Repository, CopyFailed> {
        let image = Image::parse(&place.image).map_err(push)?;
        if matches!(image.version, Version::Digest(_)) {
            return Err(push("the target has a digest in place of a tag".to_owned()));
        }
        let clients = match &place.ca {
            None => self.clients.clone(),
            Some(pem) => with_bundle(self.roots.clone(), pem)
                .and_then(|roots| Clients::new(roots, &self.patience))
                .map_err(push)?,
        };
        let own = image.address(place.ca.is_some()).map_err(push)?;
        let hosts = Hosts::new(own, &place.hosts).map_err(push)?;
        let (patience, secrets) = (self.patience.clone(), secrets_of(place.credentials.as_ref()));
        let exchange = Exchange { clients, hosts, patience, side: Fault::Push, secrets };
        let scope = format!("repository:{}:pull,push", image.repository);
        Ok(Repository { exchange, image, login: Login::new(place.credentials.clone(), scope) })
    }

    /// The source with the first credentials that it takes, and the manifest that is asked for.
    async fn source(&self, copy: &ImageCopy, image: &Image) -> Result<(Repository, ImageManifest), CopyFailed> {
        let own = source_address(copy, image).map_err(pull)?;
        let hosts = Hosts::new(own, &copy.hosts).map_err(pull)?;
        let (mut refused, mut absent) = (None, None);
        for credentials in copy.source_credentials.iter().cloned().map(Some).chain([None]) {
            let scope = format!("repository:{}:pull", image.repository);
            let (clients, patience) = (self.clients.clone(), self.patience.clone());
            let secrets = secrets_of(credentials.as_ref());
            let exchange = Exchange { clients, hosts: hosts.clone(), patience, side: Fault::Pull, secrets };
            let source = Repository { exchange, image: image.clone(), login: Login::new(credentials, scope) };
            match source.manifest(image.version.as_str()).await {
                Ok(Ok(root)) => return Ok((source, root)),
                Ok(Err(said)) => absent = Some(pull(said.after(&format!("there is no image {}", image.whole())))),
                Err(failed) if failed.fault() == Fault::Unauthorized => refused = refused.or(Some(failed)),
                Err(failed) => return Err(failed),
            }
        }
        let unknown = || pull(format!("there is no image {}", image.whole()));
        Err(absent.or(refused).unwrap_or_else(unknown))
    }
}

/// Returns the texts of the credentials that no message may repeat.
fn secrets_of(credentials: Option<&Credentials>) -> Arc<[String]> {
    let basic = credentials.map(|known| [known.basic(), known.password.clone()]);
    let bare = credentials.and_then(|known| known.basic().split_once(' ').map(|(_, bare)| bare.to_owned()));
    basic.into_iter().flatten().chain(bare).collect()
}

/// Where the source is asked.
fn source_address(copy: &ImageCopy, image: &Image) -> Result<Url, String> {
    let Some(base) = &copy.source_base else {
        return image.address(false);
    };
    let with_end = format!("{}/", base.trim_end_matches('/'));
    let url =
        Url::parse(&with_end).map_err(|error| format!("the address in place of the registry is none: {error}"))?;
    let is_secure = url.scheme() == "https" || (url.scheme() == "http" && is_loopback(&url));
    let is_bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if is_secure && is_bare {
        return Ok(url);
    }
    Err("the address in place of the registry is without HTTPS, or has more than a host and a path".to_owned())
}

/// Which tag is used, of the one that is wanted and the other one.
async fn place<'a>(target: &'a Repository, copy: &'a ImageCopy, digest: &Sha256) -> Result<Place<'a>, CopyFailed> {
    for tag in [target.image.version.as_str(), &copy.otherwise] {
        match target.digest_of(tag).await? {
            None => return Ok(Place::Free(tag)),
            Some(found) if found == *digest => return Ok(Place::There(tag)),
            Some(_) => {}
        }
    }
    let (wanted, other) = (target.image.whole(), &copy.otherwise);
    Err(push(format!("{wanted} is another image already, and so is {other}: neither is replaced")))
}

/// Publishes the manifests: those below by their digests, the image itself by its tag.
async fn publish(target: &Repository, gathered: &Gathered, tag: &str, tally: &CopyTally<'_>) -> Result<(), CopyFailed> {
    let Some((image, below)) = gathered.manifests.split_last() else { return Ok(()) };
    for manifest in below {
        target.put_manifest(manifest, manifest.digest.as_str()).await?;
        tally.send(manifest.bytes.len() as u64);
    }
    target.put_manifest(image, tag).await?;
    tally.send(image.bytes.len() as u64);
    Ok(())
}

fn copied(target: &Repository, tag: &str, digest: &Sha256) -> Copied {
    Copied {
        target: target.image.with_tag(tag),
        digest: digest.to_string(),
        bytes: 0,
        skipped: 0,
        left_out: Vec::new(),
    }
}

fn pull(words: String) -> CopyFailed {
    CopyFailed::for_good(Fault::Pull, words)
}

fn push(words: String) -> CopyFailed {
    CopyFailed::for_good(Fault::Push, words)
}
