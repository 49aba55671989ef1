//! Copies one image. The method [`Registries::copy`] has all steps.
//!
//! A copy must not replace the image of an existing tag.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use futures::future::try_join_all;
use oarlock_signature::Sha256;
use reqwest::Url;
use rustls::RootCertStore;

use crate::blob::Transfer;
use crate::clients::{Clients, system_roots, with_bundle};
use crate::credentials::Credentials;
use crate::exchange::Exchange;
use crate::failed::{CopyFailed, Fault};
use crate::gather::{Gathered, gather};
use crate::hosts::{Hosts, is_loopback};
use crate::image::{Image, Version, check_tag};
use crate::login::Login;
use crate::manifest::ImageManifest;
use crate::repository::Repository;
use crate::tally::{CopyProgress, CopyTally};
use crate::timeouts::Timeouts;

/// The most blobs that are copied at once.
const AT_A_TIME: usize = 4;

/// Makes copies between registries. Clones share connections.
#[derive(Clone, Debug)]
pub struct Registries {
    clients: Clients,
    roots: RootCertStore,
    timeouts: Timeouts,
}

/// The reason why the HTTP client could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client cannot be made: {0}")]
pub struct RegistriesFailed(String);

/// The source and the target of one copy.
#[derive(Clone, Debug)]
pub struct ImageCopy {
    /// The source: `repository@sha256:…` or `repository:tag`, with the defaults of Docker.
    pub source: String,
    /// The credentials to try in order. The last try is anonymous.
    pub source_credentials: Vec<Credentials>,
    /// The other hosts, as `host[:port]`, to which the source may send for tokens and in redirects.
    pub hosts: Vec<String>,
    /// The place where the image is published.
    pub target: Destination,
    /// The tag to use if the tag of `target` belongs to another image.
    pub otherwise: String,
    /// The URL of a mirror that replaces the source registry. It has no credentials.
    pub source_base: Option<String>,
    /// The digest by which a runtime knows the image: of its configuration, of a manifest or of the index. An image without this digest is
    /// not copied.
    pub runs: Option<String>,
    /// True if missing parts of an index are left out.
    pub available: bool,
}

/// The place of an image in a registry: the target of a copy, or a plugin that is fetched, pushed or signed.
#[derive(Clone, Debug, Default)]
pub struct Destination {
    /// The image as `registry/repository:tag`. A plugin may also have `@sha256:…`.
    pub image: String,
    /// The credentials of the registry, if it needs any.
    pub credentials: Option<Credentials>,
    /// The other hosts to which the registry may send for tokens, in redirects and for uploads.
    pub hosts: Vec<String>,
    /// The PEM certificates that are trusted for this registry, in addition to those of the system. A registry on this machine is reached
    /// by TLS only if this is set.
    pub ca: Option<Vec<u8>>,
}

/// The result of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The whole reference with the tag that was used.
    pub target: String,
    /// The digest of the image.
    pub digest: String,
    /// The number of sent bytes. It is 0 if the tag already had the digest.
    pub bytes: u64,
    /// The bytes of blobs that the target already had.
    pub skipped: u64,
    /// The omitted platforms of an index, each with the digest of the missing manifest.
    pub left_out: Vec<String>,
}

/// The tag to use at the target.
enum Place<'a> {
    /// The tag already has the image.
    There(&'a str),
    /// The tag does not exist.
    Free(&'a str),
}

impl Registries {
    /// Makes registries with the roots of the system.
    ///
    /// # Errors
    /// If the HTTP client cannot be made.
    pub fn new() -> Result<Self, RegistriesFailed> {
        Self::with_timeouts(Timeouts::default())
    }

    /// Makes registries with other timeouts and retries.
    ///
    /// # Errors
    /// If the HTTP client cannot be made.
    pub fn with_timeouts(timeouts: Timeouts) -> Result<Self, RegistriesFailed> {
        let roots = system_roots();
        let clients = Clients::new(roots.clone(), &timeouts).map_err(RegistriesFailed)?;
        Ok(Self { clients, roots, timeouts })
    }

    /// Adds trusted certificate authorities, for sources and targets alike.
    ///
    /// # Errors
    /// If the PEM certificates are invalid.
    pub fn trusting(self, pem: &[u8]) -> Result<Self, RegistriesFailed> {
        let roots = with_bundle(self.roots, pem).map_err(RegistriesFailed)?;
        let clients = Clients::new(roots.clone(), &self.timeouts).map_err(RegistriesFailed)?;
        Ok(Self { clients, roots, timeouts: self.timeouts })
    }

    /// Copies an image with everything that it refers to. Calls `tell` after each chunk, so `tell` has to be fast. Dropping the future
    /// stops the copy.
    ///
    /// # Errors
    /// If the tag does not refer to the image afterwards.
    pub async fn copy(
        &self,
        copy: &ImageCopy,
        tell: impl Fn(CopyProgress) + Send + Sync,
    ) -> Result<Copied, CopyFailed> {
        let image = Image::parse(&copy.source).map_err(pull)?;
        let target = self.target(&copy.target)?;
        check_tag(&copy.otherwise).map_err(push)?;
        // If the target already has the digest, the source needs no request.
        if let Version::Digest(digest) = &image.version
            && !copy.available
            && let Place::There(tag) = place(&target, copy, digest).await?
        {
            return Ok(copied(&target, tag, digest));
        }
        let (source, root) = self.source(copy, &image).await?;
        let (tag, gathered) = if copy.available || copy.runs.is_some() {
            // The digest of the copy is known only after all manifests were read.
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

    /// Returns the digest of the image at a place, or `None` if there is no image.
    ///
    /// # Errors
    /// If the registry does not answer with the digest.
    pub async fn digest_at(&self, place: &Destination) -> Result<Option<String>, CopyFailed> {
        let target = self.target(place)?;
        let digest = target.digest_of(target.image.version.as_str()).await?;
        Ok(digest.map(|digest| digest.to_string()))
    }

    fn target(&self, place: &Destination) -> Result<Repository, CopyFailed> {
        let target = self.repository(place, Fault::Push)?;
        if matches!(target.image.version, Version::Digest(_)) {
            return Err(push("the target has a digest in place of a tag".to_owned()));
        }
        Ok(target)
    }

    /// Returns the repository of a place, to pull from it, or also to push to it.
    pub(crate) fn repository(&self, place: &Destination, side: Fault) -> Result<Repository, CopyFailed> {
        let no = |message: String| CopyFailed::for_good(side, message);
        let image = Image::parse(&place.image).map_err(no)?;
        let clients = match &place.ca {
            None => self.clients.clone(),
            Some(pem) => with_bundle(self.roots.clone(), pem)
                .and_then(|roots| Clients::new(roots, &self.timeouts))
                .map_err(no)?,
        };
        let own = image.address(place.ca.is_some()).map_err(no)?;
        let hosts = Hosts::new(own, &place.hosts).map_err(no)?;
        let (timeouts, secrets) = (self.timeouts.clone(), secrets_of(place.credentials.as_ref()));
        let exchange = Exchange { clients, hosts, timeouts, side, secrets };
        let actions = if side == Fault::Push { "pull,push" } else { "pull" };
        let scope = format!("repository:{}:{actions}", image.repository);
        Ok(Repository { exchange, image, login: Login::new(place.credentials.clone(), scope) })
    }

    /// Returns the source with the first accepted credentials, and the requested manifest.
    async fn source(&self, copy: &ImageCopy, image: &Image) -> Result<(Repository, ImageManifest), CopyFailed> {
        let own = source_address(copy, image).map_err(pull)?;
        let hosts = Hosts::new(own, &copy.hosts).map_err(pull)?;
        let (mut refused, mut absent) = (None, None);
        for credentials in copy.source_credentials.iter().cloned().map(Some).chain([None]) {
            let scope = format!("repository:{}:pull", image.repository);
            let (clients, timeouts) = (self.clients.clone(), self.timeouts.clone());
            let secrets = secrets_of(credentials.as_ref());
            let exchange = Exchange { clients, hosts: hosts.clone(), timeouts, side: Fault::Pull, secrets };
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

/// Returns the secret texts of credentials. No message may repeat them.
fn secrets_of(credentials: Option<&Credentials>) -> Arc<[String]> {
    let basic = credentials.map(|known| [known.basic(), known.password.clone()]);
    let bare = credentials.and_then(|known| known.basic().split_once(' ').map(|(_, bare)| bare.to_owned()));
    basic.into_iter().flatten().chain(bare).collect()
}

/// Returns the URL of the source: the mirror, or else the registry of the image.
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

/// Returns the tag to use: the wanted tag, or the other one if the wanted tag belongs to another image.
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

/// Publishes the manifests: first those that others refer to by digest, then the image itself by its tag.
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

fn pull(message: String) -> CopyFailed {
    CopyFailed::for_good(Fault::Pull, message)
}

fn push(message: String) -> CopyFailed {
    CopyFailed::for_good(Fault::Push, message)
}
