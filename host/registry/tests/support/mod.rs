//! Generated images, and an in-memory registry that serves and accepts them. A test can make the registry give wrong answers.
#![allow(dead_code, reason = "each harness uses a part of it")]
#![allow(unreachable_pub, reason = "it is a part of each harness")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use bytes::Bytes;
use oarlock_registry::{Copied, CopyFailed, Destination, ImageCopy, Registries, Timeouts};
use ring::digest::SHA256;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Returns the SHA-256 digest of the bytes.
pub fn digest(bytes: &[u8]) -> String {
    let hash = ring::digest::digest(&SHA256, bytes);
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Returns bytes that depend only on the seed. No two blocks of them are equal.
pub fn bytes(seed: u64, size: usize) -> Vec<u8> {
    const BLOCK: usize = 4_096;
    let mut all = Vec::with_capacity(size + BLOCK);
    while all.len() < size {
        let numbered = [seed.to_le_bytes(), (all.len() as u64).to_le_bytes()].concat();
        let begin = all.len();
        all.extend_from_slice(&numbered);
        all.resize(begin + BLOCK, seed as u8);
    }
    all.truncate(size);
    all
}

/// An image: its manifests and blobs by digest.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The digest of the root, which is an index or a manifest.
    pub root: String,
    pub manifests: HashMap<String, (String, Bytes)>,
    pub blobs: HashMap<String, Bytes>,
}

impl Image {
    /// Returns an index of two manifests. They share all layers, and each has its own configuration.
    pub fn of(layers: &[Vec<u8>]) -> Self {
        let mut image = Self::default();
        let layers: Vec<Value> =
            layers.iter().map(|layer| image.blob("application/vnd.oci.image.layer.v1.tar", layer.clone())).collect();
        let children: Vec<Value> = ["amd64", "arm64"]
            .iter()
            .map(|arch| {
                let config = json!({"architecture": arch, "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}});
                let config = image.blob("application/vnd.oci.image.config.v1+json", config.to_string().into_bytes());
                image.manifest(
                    MANIFEST,
                    &json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}),
                )
            })
            .collect();
        let root = image.manifest(INDEX, &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": children}));
        image.root = root["digest"].as_str().unwrap().to_owned();
        image
    }

    /// Adds a blob. Returns its descriptor.
    pub fn blob(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let (digest, size) = (digest(&bytes), bytes.len());
        self.blobs.insert(digest.clone(), bytes.into());
        json!({"mediaType": media_type, "digest": digest, "size": size})
    }

    /// Adds a manifest, which becomes the root. Returns its descriptor.
    pub fn manifest(&mut self, media_type: &str, value: &Value) -> Value {
        let text = value.to_string();
        let (digest, size) = (digest(text.as_bytes()), text.len());
        self.manifests.insert(digest.clone(), (media_type.to_owned(), text.into()));
        self.root.clone_from(&digest);
        json!({"mediaType": media_type, "digest": digest, "size": size})
    }

    /// Returns the bytes of all manifests and blobs together.
    pub fn size(&self) -> u64 {
        let manifests = self.manifests.values().map(|(_, bytes)| bytes.len());
        manifests.chain(self.blobs.values().map(Bytes::len)).sum::<usize>() as u64
    }
}

/// Makes wrong answers. Takes the request, and the number of earlier requests with the same method and path. `None` means the true answer.
pub type Lie = Box<dyn Fn(&Parts, usize) -> Option<Response<Body>> + Send + Sync>;

/// How a registry lists the referrers of a manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Referrers {
    /// Not at all, so clients write a tag.
    #[default]
    Unsupported,
    Supported,
    /// With the type of the configuration in place of that of the artefact, as go-containerregistry does.
    WithWrongType,
}

/// The content of an in-memory registry, and its requests so far.
pub struct Store {
    pub image: Mutex<Image>,
    pub tags: Mutex<HashMap<String, String>>,
    /// The method, the path and the `Authorization` of each request.
    pub asked: Mutex<Vec<(String, Option<String>)>>,
    /// Digests of blobs that arrived with wrong bytes. A real registry refuses such blobs.
    pub wrong: Mutex<Vec<String>>,
    /// How the registry lists referrers.
    pub referrers: Mutex<Referrers>,
    /// The number of uploads that ended early.
    pub broken: tokio::sync::watch::Sender<usize>,
    lie: Lie,
}

/// An in-memory registry on a local port. The registry ends when this value is dropped.
pub struct Fake {
    pub address: String,
    pub store: Arc<Store>,
    task: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    /// Starts a registry that has this image with the tag `1`.
    pub async fn serving(image: Image, lie: Lie) -> Self {
        let tags =
            if image.root.is_empty() { HashMap::new() } else { HashMap::from([("1".to_owned(), image.root.clone())]) };
        let store = Store {
            image: Mutex::new(image),
            tags: Mutex::new(tags),
            asked: Mutex::default(),
            wrong: Mutex::default(),
            referrers: Mutex::default(),
            broken: tokio::sync::watch::Sender::new(0),
            lie,
        };
        let store = Arc::new(store);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = store.clone();
        let router = Router::new().fallback(move |request: Request<Body>| answer(shared.clone(), request));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, store, task }
    }

    /// Starts an empty registry that always gives the true answer.
    pub async fn empty() -> Self {
        Self::serving(Image::default(), honest()).await
    }

    pub fn asked(&self, part: &str) -> usize {
        self.store.asked.lock().unwrap().iter().filter(|(asked, _)| asked.contains(part)).count()
    }
}

pub fn honest() -> Lie {
    Box::new(|_, _| None)
}

/// Returns an HTTP response.
pub fn response(status: u16, headers: &[(&str, &str)], body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(body.into()).unwrap()
}

fn plain(status: StatusCode) -> Response<Body> {
    response(status.as_u16(), &[], "")
}

async fn answer(store: Arc<Store>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let asked = format!("{} {}", parts.method, parts.uri.path());
    let authorization = parts.headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    let before = {
        let mut all = store.asked.lock().unwrap();
        let before = all.iter().filter(|(one, _)| *one == asked).count();
        all.push((asked, authorization));
        before
    };
    if let Some(lie) = (store.lie)(&parts, before) {
        return lie;
    }
    let path = parts.uri.path().to_owned();
    let (rest, last) = path.rsplit_once('/').unwrap();
    let is_read = parts.method == Method::GET || parts.method == Method::HEAD;
    match (parts.method.clone(), rest.rsplit('/').next().unwrap()) {
        (_, "manifests") if is_read => read_manifest(&store, last, &parts.method),
        (_, "blobs") if is_read => read_blob(&store, last, &parts.method),
        (Method::GET, "referrers") => list_referrers(&store, last),
        (Method::POST, "uploads") => response(202, &[("location", "session?state=secret-state")], ""),
        (Method::PUT, "uploads") => take_blob(&store, &parts, body).await,
        (Method::PUT, "manifests") => take_manifest(&store, last, &parts.headers, body).await,
        _ => plain(StatusCode::METHOD_NOT_ALLOWED),
    }
}

fn read_manifest(store: &Store, version: &str, method: &Method) -> Response<Body> {
    let digest = store.tags.lock().unwrap().get(version).cloned().unwrap_or(version.to_owned());
    let found = store.image.lock().unwrap().manifests.get(&digest).cloned();
    let Some((media_type, bytes)) = found else { return plain(StatusCode::NOT_FOUND) };
    let bytes = if method == Method::HEAD { Bytes::new() } else { bytes };
    response(200, &[("content-type", &media_type), ("docker-content-digest", &digest)], bytes)
}

fn list_referrers(store: &Store, subject: &str) -> Response<Body> {
    let how = *store.referrers.lock().unwrap();
    if how == Referrers::Unsupported {
        return plain(StatusCode::NOT_FOUND);
    }
    let image = store.image.lock().unwrap();
    let manifests = image.manifests.iter().filter_map(|(digest, (media_type, bytes))| {
        let manifest: Value = serde_json::from_slice(bytes).ok()?;
        let of = if how == Referrers::Supported { &manifest["artifactType"] } else { &manifest["config"]["mediaType"] };
        let entry = json!({"mediaType": media_type, "digest": digest, "size": bytes.len(), "artifactType": of});
        (manifest["subject"]["digest"] == subject).then_some(entry)
    });
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests.collect::<Vec<_>>()});
    response(200, &[("content-type", INDEX)], index.to_string())
}

fn read_blob(store: &Store, digest: &str, method: &Method) -> Response<Body> {
    let found = store.image.lock().unwrap().blobs.get(digest).cloned();
    let Some(bytes) = found else { return plain(StatusCode::NOT_FOUND) };
    let length = bytes.len().to_string();
    let bytes = if method == Method::HEAD { Bytes::new() } else { bytes };
    response(200, &[("content-length", &length)], bytes)
}

async fn take_blob(store: &Store, parts: &Parts, body: Body) -> Response<Body> {
    let query = parts.uri.query().unwrap_or_default().replace("%3A", ":");
    let said = query.rsplit_once("digest=").unwrap().1.to_owned();
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        store.broken.send_modify(|broken| *broken += 1);
        return plain(StatusCode::BAD_REQUEST);
    };
    if digest(&bytes) != said {
        store.wrong.lock().unwrap().push(said.clone());
    }
    store.image.lock().unwrap().blobs.insert(said, bytes);
    plain(StatusCode::CREATED)
}

async fn take_manifest(store: &Store, version: &str, headers: &HeaderMap, body: Body) -> Response<Body> {
    let bytes = to_bytes(body, usize::MAX).await.unwrap();
    let media_type = headers["content-type"].to_str().unwrap().to_owned();
    let digest = digest(&bytes);
    let manifest: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    store.image.lock().unwrap().manifests.insert(digest.clone(), (media_type, bytes));
    if !version.starts_with("sha256:") {
        store.tags.lock().unwrap().insert(version.to_owned(), digest);
    }
    match manifest["subject"]["digest"].as_str() {
        Some(subject) if *store.referrers.lock().unwrap() != Referrers::Unsupported => {
            response(201, &[("oci-subject", subject)], "")
        }
        _ => plain(StatusCode::CREATED),
    }
}

/// Returns short timeouts and few tries for tests.
pub fn timeouts() -> Timeouts {
    use std::time::Duration;
    Timeouts {
        connect: Duration::from_secs(5),
        head: Duration::from_secs(5),
        stall: Duration::from_secs(5),
        signatures: Duration::from_secs(60),
        pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(1),
        tries: 5,
    }
}

/// Returns a copy of `team/app:1` from the source to the same name at the target.
pub fn copy_of(source: &str, target: &str) -> ImageCopy {
    ImageCopy {
        source: format!("{source}/team/app:1"),
        source_credentials: Vec::new(),
        hosts: Vec::new(),
        target: Destination { image: format!("{target}/team/app:1"), ..Destination::default() },
        otherwise: "1-other".to_owned(),
        source_base: None,
        runs: None,
        available: false,
    }
}

/// Runs the copy with the timeouts of [`timeouts`].
pub async fn run(copy: &ImageCopy) -> Result<Copied, CopyFailed> {
    Registries::with_timeouts(timeouts()).unwrap().copy(copy, |_| {}).await
}
