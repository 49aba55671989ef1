//! An in-memory image registry for an in-memory cluster. It stores pushed images and makes up the others on each pull.
//!
//! Serves the OCI distribution protocol over plain HTTP. A name below `custom/` is only for pushed images. An image with any other
//! name exists even if nobody pushed it: the registry builds it from the name alone, so each pull returns the same bytes. A push
//! must fit into the registry's size limit.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use serde_json::json;
use tokio::net::TcpListener;

use crate::server::listen::serve;
use crate::server::reply::ApiBody;

/// The largest total size of all images in bytes.
const ROOM: usize = 256 * 1024 * 1024;
/// The media types of manifests and blobs.
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const BLOB: &str = "application/octet-stream";
/// Prefix of the names of pushed images. The registry makes up no image with this prefix.
const PUSHED: &str = "custom/";

/// An in-memory image registry. Clones share its images.
#[derive(Clone, Default)]
pub struct ImageRegistry(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    /// Blobs by digest.
    blobs: HashMap<String, Bytes>,
    /// Digest and media type of each manifest, by image name and by tag or digest.
    manifests: HashMap<(String, String), (String, String)>,
    /// Unfinished uploads by upload number.
    uploads: HashMap<String, Vec<u8>>,
    begun: u64,
    bytes: usize,
}

/// A refusal: HTTP status, error code and message.
struct Refused(StatusCode, &'static str, String);

type Answer = Result<Response<ApiBody>, Refused>;

fn sha256(bytes: &[u8]) -> String {
    let hex: String = digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn refused<T>(status: StatusCode, code: &'static str, message: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(status, code, message.into()))
}

impl ImageRegistry {
    /// Serves until the listener fails or the caller drops the future.
    ///
    /// # Errors
    ///
    /// If the listener can accept no further connection.
    pub async fn serve(self, listener: TcpListener) -> io::Result<()> {
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let registry = self.clone();
            async move { Ok::<_, Infallible>(registry.answer(request).await.unwrap_or_else(refusal)) }
        });
        serve(listener, service).await
    }

    /// Returns the digest of the pushed image with this name and tag.
    pub fn pushed(&self, name: &str, tag: &str) -> Option<String> {
        let stored = self.0.lock();
        stored.manifests.get(&(name.to_owned(), tag.to_owned())).map(|(digest, _)| digest.clone())
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        if path == "/v2/" || path == "/v2" {
            return Ok(answer(StatusCode::OK, Bytes::from_static(b"{}")));
        }
        let query = parts.uri.query().unwrap_or_default();
        let asked = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "digest");
        let digest = asked.map(|(_, digest)| digest.into_owned());
        let rest = path.strip_prefix("/v2/").unwrap_or_default();
        let is_head = parts.method == Method::HEAD;
        if let Some((name, upload)) = rest.split_once("/blobs/uploads/") {
            let body = read(body).await?;
            return match (&parts.method, digest) {
                (&Method::POST, None) => Ok(self.begin(name)),
                (&Method::PATCH, _) => self.add(name, upload, &body),
                (&Method::PUT, Some(digest)) => self.finish(name, upload, (&digest, &body)),
                _ => refused(StatusCode::BAD_REQUEST, "UNSUPPORTED", "POST, PATCH, or PUT with a digest"),
            };
        }
        if let Some((name, digest)) = rest.split_once("/blobs/") {
            return self.blob(name, digest, is_head);
        }
        if let Some((name, reference)) = rest.split_once("/manifests/") {
            if parts.method != Method::PUT {
                return self.manifest(name, reference, is_head);
            }
            let media = parts.headers.get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok());
            let media = media.unwrap_or(MANIFEST).to_owned();
            return self.put((name, reference), media, read(body).await?);
        }
        match rest.strip_suffix("/tags/list") {
            Some(name) => Ok(answer(StatusCode::OK, self.tags(name))),
            None => refused(StatusCode::NOT_FOUND, "NAME_UNKNOWN", format!("there is no {path}")),
        }
    }

    fn begin(&self, name: &str) -> Response<ApiBody> {
        let mut stored = self.0.lock();
        stored.begun = stored.begun.saturating_add(1);
        let upload = stored.begun.to_string();
        stored.uploads.insert(upload.clone(), Vec::new());
        at(answer(StatusCode::ACCEPTED, Bytes::new()), &format!("/v2/{name}/blobs/uploads/{upload}"))
    }

    fn add(&self, name: &str, upload: &str, body: &[u8]) -> Answer {
        let mut stored = self.0.lock();
        stored.bytes = stored.bytes.saturating_add(body.len());
        if stored.bytes > ROOM {
            return refused(StatusCode::INSUFFICIENT_STORAGE, "DENIED", "this registry in memory is full");
        }
        let Some(bytes) = stored.uploads.get_mut(upload) else {
            return refused(StatusCode::NOT_FOUND, "BLOB_UPLOAD_UNKNOWN", "no such upload");
        };
        bytes.extend_from_slice(body);
        let last = bytes.len().saturating_sub(1);
        let mut added = at(answer(StatusCode::ACCEPTED, Bytes::new()), &format!("/v2/{name}/blobs/uploads/{upload}"));
        if let Ok(range) = HeaderValue::from_str(&format!("0-{last}")) {
            added.headers_mut().insert(header::RANGE, range);
        }
        Ok(added)
    }

    fn finish(&self, name: &str, upload: &str, (wanted, body): (&str, &[u8])) -> Answer {
        self.add(name, upload, body)?;
        let mut stored = self.0.lock();
        let bytes = Bytes::from(stored.uploads.remove(upload).unwrap_or_default());
        if sha256(&bytes) != *wanted {
            return refused(StatusCode::BAD_REQUEST, "DIGEST_INVALID", "the bytes have another digest");
        }
        stored.blobs.insert(wanted.to_owned(), bytes);
        Ok(at(answer(StatusCode::CREATED, Bytes::new()), &format!("/v2/{name}/blobs/{wanted}")))
    }

    fn blob(&self, name: &str, digest: &str, is_head: bool) -> Answer {
        let stored = self.0.lock().blobs.get(digest).cloned();
        let made_up = || made_up(name).into_iter().find(|(_, bytes)| sha256(bytes) == digest).map(|(_, bytes)| bytes);
        match stored.or_else(made_up) {
            Some(bytes) => Ok(content((BLOB, digest), bytes, is_head)),
            None => refused(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", "no such blob"),
        }
    }

    fn manifest(&self, name: &str, reference: &str, is_head: bool) -> Answer {
        let stored = self.0.lock();
        if let Some((digest, media)) = stored.manifests.get(&(name.to_owned(), reference.to_owned()))
            && let Some(bytes) = stored.blobs.get(digest)
        {
            return Ok(content((media, digest), bytes.clone(), is_head));
        }
        let made_up = made_up(name).into_iter().find(|(media, _)| *media == MANIFEST);
        let is_asked = |digest: &str| !reference.starts_with("sha256:") || reference == digest;
        match made_up.map(|(_, bytes)| (sha256(&bytes), bytes)).filter(|(digest, _)| is_asked(digest)) {
            Some((digest, bytes)) => Ok(content((MANIFEST, &digest), bytes, is_head)),
            None => refused(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", format!("there is no image {name}:{reference}")),
        }
    }

    fn put(&self, (name, reference): (&str, &str), media: String, body: Bytes) -> Answer {
        let digest = sha256(&body);
        if reference.starts_with("sha256:") && reference != digest {
            return refused(StatusCode::BAD_REQUEST, "DIGEST_INVALID", "the manifest has another digest");
        }
        let mut stored = self.0.lock();
        stored.bytes = stored.bytes.saturating_add(body.len());
        for reference in [reference, &digest] {
            stored.manifests.insert((name.to_owned(), reference.to_owned()), (digest.clone(), media.clone()));
        }
        stored.blobs.insert(digest.clone(), body);
        let mut put = at(content((&media, &digest), Bytes::new(), false), &format!("/v2/{name}/manifests/{digest}"));
        *put.status_mut() = StatusCode::CREATED;
        Ok(put)
    }

    fn tags(&self, name: &str) -> Bytes {
        let stored = self.0.lock();
        let own = stored.manifests.keys().filter(|(of, tag)| of == name && !tag.starts_with("sha256:"));
        let mut tags: Vec<&str> = own.map(|(_, tag)| tag.as_str()).collect();
        tags.sort_unstable();
        Bytes::from(json!({"name": name, "tags": tags}).to_string())
    }
}

/// Returns the parts of a made-up image: its manifest, its config and an empty layer. Returns no parts for a pushed image's name.
fn made_up(name: &str) -> Vec<(&'static str, Bytes)> {
    if name.starts_with(PUSHED) {
        return Vec::new();
    }
    // An empty tar archive consists only of its end marker.
    let layer = Bytes::from(vec![0; 1_024]);
    let config = json!({"architecture": "amd64", "os": "linux", "config": {"Labels": {"made-up": name}},
        "rootfs": {"type": "layers", "diff_ids": [sha256(&layer)]}});
    let config = Bytes::from(config.to_string());
    let part = |media: &str, bytes: &Bytes| json!({"mediaType": media, "digest": sha256(bytes), "size": bytes.len()});
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": part(CONFIG, &config),
        "layers": [part(LAYER, &layer)]});
    vec![(MANIFEST, Bytes::from(manifest.to_string())), (CONFIG, config), (LAYER, layer)]
}

async fn read(body: Incoming) -> Result<Bytes, Refused> {
    match Limited::new(body, ROOM).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(_) => refused(StatusCode::PAYLOAD_TOO_LARGE, "SIZE_INVALID", "the body is too large, or broke off"),
    }
}

fn answer(status: StatusCode, body: Bytes) -> Response<ApiBody> {
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = status;
    response
}

fn refusal(Refused(status, code, message): Refused) -> Response<ApiBody> {
    let body = json!({"errors": [{"code": code, "message": message}]}).to_string();
    answer(status, Bytes::from(body))
}

/// Returns the response with a manifest or blob. The response to a HEAD request has only the headers.
fn content((media, digest): (&str, &str), bytes: Bytes, is_head: bool) -> Response<ApiBody> {
    let size = bytes.len();
    let mut response = answer(StatusCode::OK, if is_head { Bytes::new() } else { bytes });
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    for (name, value) in [("content-type", media), ("docker-content-digest", digest)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    response
}

fn at(mut response: Response<ApiBody>, place: &str) -> Response<ApiBody> {
    if let Ok(place) = HeaderValue::from_str(place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_is_made_up_is_whole_and_the_same_each_time() {
        let parts = made_up("library/busybox");
        let (_, manifest) = &parts[0];
        let manifest: serde_json::Value = serde_json::from_slice(manifest).unwrap();
        let named = [&manifest["config"], &manifest["layers"][0]];
        for (part, (media, bytes)) in named.into_iter().zip(&parts[1..]) {
            assert_eq!(
                (part["digest"].as_str(), part["mediaType"].as_str()),
                (Some(sha256(bytes).as_str()), Some(*media))
            );
            assert_eq!(part["size"], bytes.len());
        }
        assert_eq!(made_up("library/busybox"), parts);
        assert_ne!(made_up("library/nginx")[0], parts[0]);
        assert_eq!(made_up("custom/library/busybox"), []);
    }
}
