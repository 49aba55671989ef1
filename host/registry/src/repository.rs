//! One repository of a registry, by the distribution protocol of OCI.
//!
//! Each method sends its request once, except the methods that say that they retry.

use std::time::Duration;

use bytes::Bytes;
use oarlock_signature::Sha256;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use reqwest::{Body, Method, StatusCode, Url};

use crate::exchange::{Exchange, HttpAnswer, HttpCall};
use crate::failed::{CopyFailed, Fault};
use crate::hosts::NamedFor;
use crate::image::Image;
use crate::login::Login;
use crate::manifest::{ACCEPTED, Content, ImageManifest, MANIFEST};
use crate::said::RegistryWords;
use crate::timeouts::Tries;

/// The header in which a registry sends the digest of a manifest.
const DIGEST: &str = "docker-content-digest";
/// The header by which a registry says that it has noted the subject of a manifest.
const SUBJECT: &str = "oci-subject";

/// A repository of a registry.
#[derive(Debug)]
pub(crate) struct Repository {
    pub(crate) exchange: Exchange,
    pub(crate) image: Image,
    pub(crate) login: Login,
}

impl Repository {
    pub(crate) fn call(&self, method: Method, rest: &str) -> Result<HttpCall, CopyFailed> {
        let path = format!("v2/{}/{rest}", self.image.repository);
        let url = self.exchange.hosts.own().join(&path);
        let url = url.map_err(|error| self.exchange.refuse(format!("there is no address of {path}: {error}")))?;
        let mut call = HttpCall::new(method, url);
        call.headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        Ok(call)
    }

    /// Sends a call once, with the login of the repository. After a challenge, it logs in and sends the call again.
    pub(crate) async fn ask(&self, call: &HttpCall) -> Result<HttpAnswer, CopyFailed> {
        let sent = self.login.authorization(&self.exchange).await?;
        let mut answer = self.exchange.follow(call, sent.clone()).await?;
        if answer.is_direct && answer.status() == StatusCode::UNAUTHORIZED {
            if let Err(failed) = self.login.challenged(sent.as_ref(), answer.headers(), &self.exchange).await {
                return Err(self.refusal(&mut answer).await.unwrap_or(failed));
            }
            let sent = self.login.authorization(&self.exchange).await?;
            answer = self.exchange.follow(call, sent).await?;
        }
        self.refusal(&mut answer).await.map_or(Ok(answer), Err)
    }

    /// Returns the failure if an answer refuses the credentials.
    async fn refusal(&self, answer: &mut HttpAnswer) -> Option<CopyFailed> {
        if !matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return None;
        }
        let said = self.exchange.said(answer).await;
        if said.is_later() {
            return Some(self.exchange.refused_with(answer, &said));
        }
        let failed = if answer.is_direct {
            let message = said.after(&format!("{}: {}", answer.describe(), self.login.who()));
            CopyFailed::for_good(Fault::Unauthorized, message)
        } else {
            // A signed URL of another host expires after a while.
            CopyFailed::for_now(self.exchange.side, said.after(&answer.describe()))
        };
        Some(failed.without_words(answer.is_head()))
    }

    /// Returns the manifest with this digest or tag, or the registry's words if there is none. Retries.
    pub(crate) async fn manifest(&self, version: &str) -> Result<Result<ImageManifest, RegistryWords>, CopyFailed> {
        let mut tries = self.exchange.timeouts.tries();
        loop {
            match self.manifest_once(version).await {
                Err(failed) => tries.after(failed).await?,
                done => return done,
            }
        }
    }

    async fn manifest_once(&self, version: &str) -> Result<Result<ImageManifest, RegistryWords>, CopyFailed> {
        let (mut answer, wanted) = match self.answer_with_manifest(Method::GET, version).await? {
            Ok(found) => found,
            Err(said) => return Ok(Err(said)),
        };
        let bytes = Bytes::from(self.exchange.read(&mut answer, MANIFEST).await?);
        let digest = Sha256::of(&bytes);
        // Some registries answer errors with status 200.
        let said = || {
            if RegistryWords::is_error(&bytes) {
                RegistryWords::read(&bytes, &self.exchange.secrets_of(&answer))
            } else {
                RegistryWords::default()
            }
        };
        if wanted.is_some_and(|wanted| wanted != digest) {
            return Err(mismatch(said().after(&format!("{}, whose digest is {digest}", answer.describe()))));
        }
        let served = answer.header(CONTENT_TYPE.as_str()).map(ToOwned::to_owned);
        let no = |error| {
            let message = format!("{} is answered with no manifest that is copied: {error}", answer.shown);
            self.exchange.refuse(said().after(&message))
        };
        ImageManifest::parse(bytes.clone(), served.as_deref()).map(Ok).map_err(no)
    }

    /// Returns the answer with a manifest, and the digest that the manifest must have: the requested one, or else the one in the header. If
    /// there is no manifest, it returns the registry's words.
    pub(crate) async fn answer_with_manifest(
        &self,
        method: Method,
        version: &str,
    ) -> Result<Result<(HttpAnswer, Option<Sha256>), RegistryWords>, CopyFailed> {
        let mut call = self.call(method, &format!("manifests/{version}"))?;
        call.headers.insert(ACCEPT, HeaderValue::from_static(ACCEPTED));
        let mut answer = self.ask(&call).await?;
        match answer.status() {
            StatusCode::OK => {
                let promised = answer.header(DIGEST).and_then(|text| Sha256::parse(text).ok());
                let wanted = Sha256::parse(version).ok().or(promised);
                Ok(Ok((answer, wanted)))
            }
            StatusCode::NOT_FOUND => {
                let said = self.exchange.said(&mut answer).await;
                if said.is_later() { Err(self.exchange.refused_with(&answer, &said)) } else { Ok(Err(said)) }
            }
            _ => Err(self.exchange.refused(&mut answer).await),
        }
    }

    /// Returns the digest of a tag, or `None` if the tag does not exist. Retries.
    pub(crate) async fn digest_of(&self, tag: &str) -> Result<Option<Sha256>, CopyFailed> {
        let (mut tries, mut method) = (self.exchange.timeouts.tries(), Method::HEAD);
        loop {
            let asked = match method {
                Method::HEAD => self.digest_of_once(tag).await,
                _ => self.digest_of_bytes(tag).await,
            };
            match asked {
                Err(failed) => self.by_words(failed, &mut tries, &mut method).await?,
                done => return done,
            }
        }
    }

    async fn digest_of_once(&self, tag: &str) -> Result<Option<Sha256>, CopyFailed> {
        match self.answer_with_manifest(Method::HEAD, tag).await? {
            Ok((_, Some(digest))) => Ok(Some(digest)),
            Ok((_, None)) => self.digest_of_bytes(tag).await,
            Err(_) => Ok(None),
        }
    }

    /// Decides how to go on after a failed try. The answer to `HEAD` has no words, so the next try is a `GET`, even after a permanent
    /// failure.
    async fn by_words(&self, failed: CopyFailed, tries: &mut Tries<'_>, method: &mut Method) -> Result<(), CopyFailed> {
        if !failed.is_wordless() {
            return tries.after(failed).await;
        }
        *method = Method::GET;
        if failed.is_for_now() { tries.after(failed).await } else { Ok(()) }
    }

    /// Returns the digest of a tag by reading its manifest, because the registry sends no digest.
    async fn digest_of_bytes(&self, tag: &str) -> Result<Option<Sha256>, CopyFailed> {
        let Ok((mut answer, _)) = self.answer_with_manifest(Method::GET, tag).await? else {
            return Ok(None);
        };
        Ok(Some(Sha256::of(&self.exchange.read(&mut answer, MANIFEST).await?)))
    }

    /// Publishes a manifest by its digest or a tag. Returns true if the registry lists it among the referrers of its subject. Retries.
    pub(crate) async fn put_manifest(&self, manifest: &ImageManifest, version: &str) -> Result<bool, CopyFailed> {
        let mut call = self.call(Method::PUT, &format!("manifests/{version}"))?;
        call.headers.insert(CONTENT_TYPE, HeaderValue::from_static(manifest.media_type));
        call.body = manifest.bytes.clone();
        let mut tries = self.exchange.timeouts.tries();
        loop {
            match self.put_once(&call, &manifest.digest).await {
                Err(failed) => tries.after(failed).await?,
                done => return done,
            }
        }
    }

    async fn put_once(&self, call: &HttpCall, digest: &Sha256) -> Result<bool, CopyFailed> {
        let mut answer = self.ask(call).await?;
        self.published(&mut answer, digest).await?;
        Ok(answer.header(SUBJECT).is_some())
    }

    /// Returns true if the registry has the blob with its size. Retries.
    pub(crate) async fn has(&self, blob: &Content) -> Result<bool, CopyFailed> {
        let (mut tries, mut method) = (self.exchange.timeouts.tries(), Method::HEAD);
        loop {
            match self.has_once(blob, method.clone()).await {
                Err(failed) => self.by_words(failed, &mut tries, &mut method).await?,
                done => return done,
            }
        }
    }

    async fn has_once(&self, blob: &Content, method: Method) -> Result<bool, CopyFailed> {
        let mut answer = self.ask(&self.call(method, &format!("blobs/{}", blob.digest))?).await?;
        match answer.status() {
            StatusCode::OK => Ok(answer.length() == Some(blob.size)),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.exchange.refused(&mut answer).await),
        }
    }

    /// Returns the answer with a blob. The bytes are not read yet.
    pub(crate) async fn open(&self, blob: &Content) -> Result<HttpAnswer, CopyFailed> {
        let mut answer = self.ask(&self.call(Method::GET, &format!("blobs/{}", blob.digest))?).await?;
        match (answer.status(), answer.length()) {
            (StatusCode::OK, Some(length)) if length != blob.size => Err(mismatch(format!(
                "{} and {length} bytes, and {} are said to be there",
                answer.describe(),
                blob.size
            ))),
            (StatusCode::OK, _) => Ok(answer),
            (StatusCode::NOT_FOUND, _) => {
                let message = format!("there is no blob {} of image {}", blob.digest, self.image.whole());
                Err(self.exchange.refuse(self.exchange.said(&mut answer).await.after(&message)))
            }
            _ => Err(self.exchange.refused(&mut answer).await),
        }
    }

    /// Begins an upload. Returns the URL for its bytes.
    pub(crate) async fn begin_upload(&self) -> Result<Url, CopyFailed> {
        let call = self.call(Method::POST, "blobs/uploads/")?;
        let mut answer = self.ask(&call).await?;
        if answer.status() != StatusCode::ACCEPTED {
            return Err(self.exchange.refused(&mut answer).await);
        }
        self.exchange.named_in(&answer, &call.url, NamedFor::Upload)
    }

    /// Sends the bytes of a blob once, to the URL of its upload.
    pub(crate) async fn upload(&self, mut to: Url, blob: &Content, bytes: Body) -> Result<(), CopyFailed> {
        let is_own = self.exchange.hosts.is_own(&to);
        to.query_pairs_mut().append_pair("digest", blob.digest.as_str());
        let mut call = HttpCall::new(Method::PUT, to);
        call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        call.headers.insert(CONTENT_LENGTH, HeaderValue::from(blob.size));
        let sent = if is_own { self.login.authorization(&self.exchange).await? } else { None };
        if let Some(value) = &sent {
            call.headers.insert(AUTHORIZATION, value.clone());
        }
        let mut answer = self.exchange.once(call, Some(bytes), Duration::ZERO).await?;
        answer.is_direct = is_own;
        match answer.status() {
            StatusCode::UNAUTHORIZED if is_own => {
                // The token expired during the upload. The bytes are lost, so the next try sends the blob again with a new token.
                if let Err(failed) = self.login.challenged(sent.as_ref(), answer.headers(), &self.exchange).await {
                    return Err(self.refusal(&mut answer).await.unwrap_or(failed));
                }
                let said = self.exchange.said(&mut answer).await;
                Err(CopyFailed::for_now(self.exchange.side, said.after(&answer.describe())))
            }
            // The registry has lost the upload, unless it does not know the repository.
            StatusCode::NOT_FOUND => {
                let said = self.exchange.said(&mut answer).await;
                if said.has("NAME_UNKNOWN") {
                    return Err(self.exchange.refused_with(&answer, &said));
                }
                Err(CopyFailed::for_now(self.exchange.side, said.after(&answer.describe())))
            }
            _ => match self.refusal(&mut answer).await {
                Some(failed) => Err(failed),
                None => self.published(&mut answer, &blob.digest).await,
            },
        }
    }

    /// Checks the answer to a published manifest or blob.
    async fn published(&self, answer: &mut HttpAnswer, digest: &Sha256) -> Result<(), CopyFailed> {
        if !answer.status().is_success() {
            return Err(self.exchange.refused(answer).await);
        }
        match answer.header(DIGEST) {
            Some(other) if other != digest.as_str() => {
                Err(mismatch(format!("{}, and another digest than {digest}", answer.describe())))
            }
            _ => Ok(()),
        }
    }
}

/// Makes the failure for bytes that do not match their digest or size.
pub(crate) fn mismatch(message: String) -> CopyFailed {
    CopyFailed::for_good(Fault::DigestMismatch, message)
}
