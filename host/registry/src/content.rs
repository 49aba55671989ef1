//! Reads manifests as they are and blobs into a sink, and writes blobs that are in memory.

use std::time::Duration;

use bytes::Bytes;
use oarlock_signature::{Hash, Sha256};
use reqwest::header::LINK;
use reqwest::{Body, Method, StatusCode, Url};
use tokio::time::timeout;

use crate::exchange::HttpCall;
use crate::failed::CopyFailed;
use crate::manifest::{Content, MANIFEST};
use crate::repository::{Repository, mismatch};
use crate::sink::ComponentSink;

/// The slowest rate at which a blob may arrive or leave: 64 KiB a second.
const SLOWEST: u64 = 64 * 1024;

/// A page of referrers.
pub(crate) struct ReferrerPage {
    pub(crate) bytes: Vec<u8>,
    /// The URL of the next page. It is at the same registry, and for the same manifest.
    pub(crate) next: Option<Url>,
}

impl Repository {
    /// Returns the bytes of a manifest, or `None` if there is none. A digest is compared with the bytes, and a header with nothing.
    /// Retries.
    pub(crate) async fn manifest_bytes(&self, version: &str, most: usize) -> Result<Option<Vec<u8>>, CopyFailed> {
        let mut tries = self.exchange.timeouts.tries();
        loop {
            match self.manifest_bytes_once(version, most).await {
                Err(failed) => tries.after(failed).await?,
                done => return done,
            }
        }
    }

    async fn manifest_bytes_once(&self, version: &str, most: usize) -> Result<Option<Vec<u8>>, CopyFailed> {
        let Ok((mut answer, _)) = self.answer_with_manifest(Method::GET, version).await? else { return Ok(None) };
        let bytes = self.exchange.read(&mut answer, most).await?;
        let digest = Sha256::of(&bytes);
        if Sha256::parse(version).is_ok_and(|wanted| wanted != digest) {
            return Err(mismatch(format!("{}, whose digest is {digest}", answer.describe())));
        }
        Ok(Some(bytes))
    }

    /// Returns a page of the referrers of a manifest, or `None` if the registry lists no referrers. Without a URL, it is the first page.
    /// Retries.
    pub(crate) async fn page(&self, of: &Sha256, url: Option<Url>) -> Result<Option<ReferrerPage>, CopyFailed> {
        let mut call = self.call(Method::GET, &format!("referrers/{of}"))?;
        let first = call.url.clone();
        call.url = url.unwrap_or(call.url);
        let mut tries = self.exchange.timeouts.tries();
        loop {
            match self.page_once(&call, &first).await {
                Err(failed) => tries.after(failed).await?,
                done => return done,
            }
        }
    }

    async fn page_once(&self, call: &HttpCall, first: &Url) -> Result<Option<ReferrerPage>, CopyFailed> {
        let mut answer = self.ask(call).await?;
        match answer.status() {
            StatusCode::OK => {}
            // Registries without this part of the protocol answer in several ways.
            StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::BAD_REQUEST
            | StatusCode::NOT_ACCEPTABLE => {
                let said = self.exchange.said(&mut answer).await;
                return if said.is_later() { Err(self.exchange.refused_with(&answer, &said)) } else { Ok(None) };
            }
            _ => return Err(self.exchange.refused(&mut answer).await),
        }
        let next = answer.header(LINK.as_str()).and_then(next_in).and_then(|text| first.join(text).ok());
        let next = next.filter(|next| self.exchange.hosts.is_own(next) && next.path() == first.path());
        Ok(Some(ReferrerPage { bytes: self.exchange.read(&mut answer, MANIFEST).await?, next }))
    }

    /// Streams a blob into a sink, and checks its size and its digest. Retries.
    pub(crate) async fn blob_into(&self, blob: &Content, sink: &mut dyn ComponentSink) -> Result<(), CopyFailed> {
        let mut tries = self.exchange.timeouts.tries();
        let wait = self.time_for(blob);
        loop {
            let done = timeout(wait, self.blob_into_once(blob, sink)).await;
            let slow = || CopyFailed::for_now(self.exchange.side, slow(blob, wait));
            match done.unwrap_or_else(|_| Err(slow())) {
                Err(failed) => tries.after(failed).await?,
                done => return done,
            }
        }
    }

    async fn blob_into_once(&self, blob: &Content, sink: &mut dyn ComponentSink) -> Result<(), CopyFailed> {
        let no =
            |error: std::io::Error| self.exchange.refuse(format!("blob {} cannot be written: {error}", blob.digest));
        sink.restart().map_err(no)?;
        let mut answer = self.open(blob).await?;
        let (mut hash, mut size) = (Hash::new(), 0_u64);
        while let Some(chunk) = self.exchange.chunk(&mut answer).await? {
            size = size.saturating_add(chunk.len() as u64);
            if size > blob.size {
                return Err(other_size(blob, "more"));
            }
            hash.add(&chunk);
            sink.take(&chunk).map_err(no)?;
        }
        if size < blob.size {
            return Err(other_size(blob, "fewer"));
        }
        let digest = hash.digest();
        if digest != blob.digest {
            return Err(mismatch(format!("the registry serves bytes with {digest} as blob {}", blob.digest)));
        }
        Ok(())
    }

    /// Publishes a blob, unless the registry has it. Retries.
    pub(crate) async fn put_blob(&self, bytes: Bytes) -> Result<(), CopyFailed> {
        let blob = content(Sha256::of(&bytes), bytes.len() as u64);
        let mut tries = self.exchange.timeouts.tries();
        // The check also runs after a failed try, because only its answer may be lost.
        while !self.has(&blob).await? {
            match self.put_blob_once(&blob, bytes.clone()).await {
                Err(failed) => tries.after(failed).await?,
                Ok(()) => return Ok(()),
            }
        }
        Ok(())
    }

    async fn put_blob_once(&self, blob: &Content, bytes: Bytes) -> Result<(), CopyFailed> {
        let place = self.begin_upload().await?;
        let wait = self.time_for(blob);
        let uploaded = timeout(wait, self.upload(place, blob, Body::from(bytes))).await;
        uploaded.map_err(|_| self.exchange.silent("an upload", wait))?
    }

    fn time_for(&self, blob: &Content) -> Duration {
        self.exchange.timeouts.head.saturating_add(Duration::from_secs(blob.size / SLOWEST))
    }
}

/// Returns a blob without a purpose in messages.
pub(crate) fn content(digest: Sha256, size: u64) -> Content {
    Content { digest, size, about: String::new(), is_other: false }
}

/// Returns the address of the next page in a header `Link`.
fn next_in(header: &str) -> Option<&str> {
    let (address, rest) = header.trim_start().strip_prefix('<')?.split_once('>')?;
    let parameters = rest.split(',').next().unwrap_or_default().split(';');
    let is_next = parameters.map(|text| text.trim().replace('"', "")).any(|text| text.eq_ignore_ascii_case("rel=next"));
    is_next.then_some(address)
}

fn other_size(blob: &Content, comparison: &str) -> CopyFailed {
    mismatch(format!("blob {} has {comparison} than the {} bytes that are promised", blob.digest, blob.size))
}

fn slow(blob: &Content, wait: Duration) -> String {
    format!("blob {} is not whole after {} s; the registry is slower than 64 KiB a second", blob.digest, wait.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_page_is_the_one_that_a_link_names_so() {
        for (header, next) in [
            (r#"</v2/a/referrers/x?n=2>; rel="next""#, Some("/v2/a/referrers/x?n=2")),
            ("<https://reg.example/y>;rel=next", Some("https://reg.example/y")),
            (r#"<y>; title="t"; rel="next", <z>; rel="last""#, Some("y")),
            (r#"<y>; rel="prev""#, None),
            (r#"<y>, <z>; rel="next""#, None),
            ("<y", None),
            ("", None),
        ] {
            assert_eq!(next_in(header), next, "{header}");
        }
    }
}
