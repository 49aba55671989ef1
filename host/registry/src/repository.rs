//! One repository of a registry, by the distribution protocol of OCI.
//!
//! Takes digests, tags and streams; yields manifests, blobs and places for uploads. Each function is one try, except those that say
//! that they are patient.

use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use reqwest::{Body, Method, StatusCode, Url};

use crate::digest::Sha256;
use crate::exchange::{Exchange, HttpAnswer, HttpCall};
use crate::failed::{CopyFailed, Fault};
use crate::hosts::NamedFor;
use crate::image::Image;
use crate::login::Login;
use crate::manifest::{ACCEPTED, Content, ImageManifest, MANIFEST};

/// What a registry calls the digest of what it serves.
const DIGEST: &str = "docker-content-digest";

/// A repository.
#[derive(Debug)]
pub(crate) struct Repository {
    pub(crate) exchange: Exchange,
    pub(crate) image: Image,
    pub(crate) login: Login,
}

impl Repository {
    fn call(&self, method: Method, rest: &str) -> Result<HttpCall, CopyFailed> {
        let path = format!("v2/{}/{rest}", self.image.repository);
        let url = self.exchange.hosts.own().join(&path);
        let url = url.map_err(|error| self.exchange.refuse(format!("there is no address of {path}: {error}")))?;
        let mut call = HttpCall::new(method, url);
        call.headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        Ok(call)
    }

    /// One try of a call, with what the registry wants to know of who asks.
    async fn ask(&self, call: &HttpCall) -> Result<HttpAnswer, CopyFailed> {
        let sent = self.login.authorization(&self.exchange).await?;
        let mut answer = self.exchange.follow(call, sent.clone()).await?;
        if answer.is_direct && answer.status() == StatusCode::UNAUTHORIZED {
            self.login.challenged(sent.as_ref(), answer.headers(), &self.exchange).await?;
            let sent = self.login.authorization(&self.exchange).await?;
            answer = self.exchange.follow(call, sent).await?;
        }
        self.refusal(&answer).map_or(Ok(answer), Err)
    }

    /// Whether an answer says that who asks may not.
    fn refusal(&self, answer: &HttpAnswer) -> Option<CopyFailed> {
        if !matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return None;
        }
        if answer.is_direct {
            return Some(CopyFailed::for_good(
                Fault::Unauthorized,
                format!("{}: {}", answer.words(), self.login.who()),
            ));
        }
        // An address that another host gave out ends after a while.
        Some(CopyFailed::for_now(self.exchange.side, answer.words()))
    }

    /// The manifest with this digest or tag, if there is one. It is patient.
    pub(crate) async fn manifest(&self, version: &str) -> Result<Option<ImageManifest>, CopyFailed> {
        let mut tries = self.exchange.patience.tries();
        loop {
            match self.manifest_once(version).await {
                Err(failed) => tries.after(failed).await?,
                done => return done,
            }
        }
    }

    async fn manifest_once(&self, version: &str) -> Result<Option<ImageManifest>, CopyFailed> {
        let Some((mut answer, wanted)) = self.answer_with_manifest(Method::GET, version).await? else {
            return Ok(None);
        };
        let bytes = self.exchange.read(&mut answer, MANIFEST).await?;
        let digest = Sha256::of(&bytes);
        if wanted.is_some_and(|wanted| wanted != digest) {
            return Err(mismatch(format!("{}, whose digest is {digest}", answer.words())));
        }
        let served = answer.header(CONTENT_TYPE.as_str()).map(ToOwned::to_owned);
        let no = |error| {
            self.exchange.refuse(format!("{} is answered with no manifest that is copied: {error}", answer.shown))
        };
        ImageManifest::parse(bytes, served.as_deref()).map(Some).map_err(no)
    }

    /// The answer with a manifest, and the digest that it is to have: the one that is asked for, else the one that is promised.
    async fn answer_with_manifest(
        &self,
        method: Method,
        version: &str,
    ) -> Result<Option<(HttpAnswer, Option<Sha256>)>, CopyFailed> {
        let mut call = self.call(method, &format!("manifests/{version}"))?;
        call.headers.insert(ACCEPT, HeaderValue::from_static(ACCEPTED));
        let answer = self.ask(&call).await?;
        match answer.status() {
            StatusCode::OK => {
                let promised = answer.header(DIGEST).and_then(|text| Sha256::parse(text).ok());
                let wanted = Sha256::parse(version).ok().or(promised);
                Ok(Some((answer, wanted)))
            }
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.exchange.refuse(answer.words())),
        }
    }

    /// The digest that a tag has, if there is one. It is patient.
    pub(crate) async fn digest_of(&self, tag: &str) -> Result<Option<Sha256>, CopyFailed> {
        let mut tries = self.exchange.patience.tries();
        loop {
            match self.digest_of_once(tag).await {
                Err(failed) => tries.after(failed).await?,
                done => return done,
            }
        }
    }

    async fn digest_of_once(&self, tag: &str) -> Result<Option<Sha256>, CopyFailed> {
        match self.answer_with_manifest(Method::HEAD, tag).await? {
            Some((_, Some(digest))) => Ok(Some(digest)),
            Some((_, None)) => self.digest_of_bytes(tag).await,
            None => Ok(None),
        }
    }

    /// The digest of the bytes behind a tag, of a registry that does not say it.
    async fn digest_of_bytes(&self, tag: &str) -> Result<Option<Sha256>, CopyFailed> {
        let Some((mut answer, _)) = self.answer_with_manifest(Method::GET, tag).await? else {
            return Ok(None);
        };
        Ok(Some(Sha256::of(&self.exchange.read(&mut answer, MANIFEST).await?)))
    }

    /// Publishes a manifest by its digest or a tag. It is patient.
    pub(crate) async fn put_manifest(&self, manifest: &ImageManifest, version: &str) -> Result<(), CopyFailed> {
        let mut call = self.call(Method::PUT, &format!("manifests/{version}"))?;
        call.headers.insert(CONTENT_TYPE, HeaderValue::from_static(manifest.media_type));
        call.body = manifest.bytes.clone();
        let mut tries = self.exchange.patience.tries();
        loop {
            match self.ask(&call).await.and_then(|answer| self.published(&answer, &manifest.digest)) {
                Err(failed) => tries.after(failed).await?,
                done => return done,
            }
        }
    }

    /// Whether the registry has the blob, with its size. It is patient.
    pub(crate) async fn has(&self, blob: &Content) -> Result<bool, CopyFailed> {
        let mut tries = self.exchange.patience.tries();
        loop {
            match self.has_once(blob).await {
                Err(failed) => tries.after(failed).await?,
                done => return done,
            }
        }
    }

    async fn has_once(&self, blob: &Content) -> Result<bool, CopyFailed> {
        let answer = self.ask(&self.call(Method::HEAD, &format!("blobs/{}", blob.digest))?).await?;
        match answer.status() {
            StatusCode::OK => Ok(answer.length() == Some(blob.size)),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.exchange.refuse(answer.words())),
        }
    }

    /// The answer with a blob, whose bytes are still to be read.
    pub(crate) async fn open(&self, blob: &Content) -> Result<HttpAnswer, CopyFailed> {
        let answer = self.ask(&self.call(Method::GET, &format!("blobs/{}", blob.digest))?).await?;
        match (answer.status(), answer.length()) {
            (StatusCode::OK, Some(length)) if length != blob.size => {
                Err(mismatch(format!("{} and {length} bytes, and {} are said to be there", answer.words(), blob.size)))
            }
            (StatusCode::OK, _) => Ok(answer),
            (StatusCode::NOT_FOUND, _) => {
                let words = format!("there is no blob {} of image {}", blob.digest, self.image.whole());
                Err(self.exchange.refuse(words))
            }
            _ => Err(self.exchange.refuse(answer.words())),
        }
    }

    /// Begins an upload. Yields where its bytes go.
    pub(crate) async fn begin_upload(&self) -> Result<Url, CopyFailed> {
        let call = self.call(Method::POST, "blobs/uploads/")?;
        let answer = self.ask(&call).await?;
        if answer.status() != StatusCode::ACCEPTED {
            return Err(self.exchange.refuse(answer.words()));
        }
        self.exchange.named_in(&answer, &call.url, NamedFor::Upload)
    }

    /// Sends the bytes of a blob, once, to where its upload was begun.
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
                // The token ended meanwhile. The bytes are gone, and the blob is begun anew with another one.
                self.login.challenged(sent.as_ref(), answer.headers(), &self.exchange).await?;
                Err(CopyFailed::for_now(self.exchange.side, answer.words()))
            }
            // The registry forgot the upload.
            StatusCode::NOT_FOUND => Err(CopyFailed::for_now(self.exchange.side, answer.words())),
            _ => self.refusal(&answer).map_or_else(|| self.published(&answer, &blob.digest), Err),
        }
    }

    /// Checks the answer of a registry that took something.
    fn published(&self, answer: &HttpAnswer, digest: &Sha256) -> Result<(), CopyFailed> {
        if !answer.status().is_success() {
            return Err(self.exchange.refuse(answer.words()));
        }
        match answer.header(DIGEST) {
            Some(other) if other != digest.as_str() => {
                Err(mismatch(format!("{}, and another digest than {digest}", answer.words())))
            }
            _ => Ok(()),
        }
    }
}

/// Bytes are not what was promised.
pub(crate) fn mismatch(words: String) -> CopyFailed {
    CopyFailed::for_good(Fault::DigestMismatch, words)
}
