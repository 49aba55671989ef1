//! The manifest of an image or of an index: its original bytes, and the parts that it refers to.
//!
//! The parser checks digests and sizes against limits. It reads only the fields that a copy needs, not the types of `oci-spec`. So a large
//! manifest takes no more memory than its digests.

use bytes::Bytes;
use oarlock_signature::{Sha256, shortened};
use serde::Deserialize;
use serde_json::Value;

/// The most bytes of one manifest.
pub(crate) const MANIFEST: usize = 4 * 1024 * 1024;
/// The most blobs of one manifest.
const BLOBS: usize = 128;
/// The most bytes of one blob, and of a whole copy: 256 GiB.
pub(crate) const BYTES: u64 = 256 * 1024 * 1024 * 1024;

/// The accepted types, as the header `Accept`.
pub(crate) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
const IMAGES: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const INDEXES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
/// The prefixes of layer types that are stored elsewhere. A registry does not need to have such layers.
const FOREIGN: [&str; 2] =
    ["application/vnd.docker.image.rootfs.foreign.", "application/vnd.oci.image.layer.nondistributable."];

/// A part that a manifest refers to by digest and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) digest: Sha256,
    pub(crate) size: u64,
    /// The purpose of the part in messages: its platform, or its type if it has none.
    pub(crate) about: String,
    /// True if the type of the part is not supported.
    pub(crate) is_other: bool,
}

/// A manifest of an image or of an index.
#[derive(Clone, Debug)]
pub(crate) struct ImageManifest {
    pub(crate) digest: Sha256,
    pub(crate) media_type: &'static str,
    pub(crate) bytes: Bytes,
    pub(crate) refers: Refers,
}

/// The parts that a manifest refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refers {
    /// The configuration and the layers of an image.
    Blobs(Vec<Content>),
    /// The manifests of an index.
    Manifests(Vec<Content>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    schema_version: Option<u32>,
    media_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: Option<String>,
    digest: String,
    size: i64,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    os: Option<String>,
    architecture: Option<String>,
    variant: Option<String>,
}

impl Descriptor {
    fn part(&self, most: u64) -> Result<Content, String> {
        let size = u64::try_from(self.size).ok().filter(|size| *size <= most);
        let size = size.ok_or_else(|| format!("{} bytes is no size of what it refers to", self.size))?;
        Ok(Content { digest: Sha256::parse(&self.digest)?, size, about: self.about(), is_other: self.is_other() })
    }

    /// Returns true if the type is neither an image nor an index.
    fn is_other(&self) -> bool {
        let known = |media_type: &str| IMAGES.contains(&media_type) || INDEXES.contains(&media_type);
        self.media_type.as_deref().is_some_and(|media_type| !known(media_type))
    }

    fn about(&self) -> String {
        let platform = self.platform.iter().flat_map(|of| [&of.os, &of.architecture, &of.variant]);
        let platform: Vec<&str> = platform.flatten().map(String::as_str).collect();
        let about = if platform.is_empty() { self.media_type.clone().unwrap_or_default() } else { platform.join("/") };
        shortened(&about)
    }

    fn is_foreign(&self) -> bool {
        let media_type = self.media_type.as_deref().unwrap_or_default();
        FOREIGN.iter().any(|prefix| media_type.starts_with(prefix))
    }
}

impl ImageManifest {
    /// Rewrites an index: `part` returns the replacement of each part, or `None` to remove the part. Returns `None` if no part is left.
    pub(crate) fn rewritten(&self, part: impl Fn(&Content) -> Option<Content>) -> Result<Option<Self>, String> {
        let Refers::Manifests(parts) = &self.refers else { return Ok(Some(self.clone())) };
        let kept: Vec<Option<Content>> = parts.iter().map(part).collect();
        if kept.iter().zip(parts).all(|(kept, part)| kept.as_ref() == Some(part)) {
            return Ok(Some(self.clone()));
        }
        let mut whole: Value =
            serde_json::from_slice(&self.bytes).map_err(|error| format!("the index cannot be read: {error}"))?;
        let Some(all) = whole.get_mut("manifests").and_then(Value::as_array_mut) else { return Ok(None) };
        let mut number = 0_usize;
        all.retain_mut(|descriptor| {
            let kept = kept.get(number).cloned().flatten();
            number = number.saturating_add(1);
            let (Some(kept), Some(own)) = (kept, descriptor.as_object_mut()) else { return false };
            own.insert("digest".to_owned(), kept.digest.as_str().into());
            own.insert("size".to_owned(), kept.size.into());
            true
        });
        let parts: Vec<Content> = kept.into_iter().flatten().collect();
        if parts.is_empty() {
            return Ok(None);
        }
        let bytes = Bytes::from(whole.to_string());
        Ok(Some(Self {
            digest: Sha256::of(&bytes),
            bytes,
            refers: Refers::Manifests(parts),
            media_type: self.media_type,
        }))
    }

    /// Reads a manifest from these bytes.
    ///
    /// # Errors
    /// If the manifest is invalid, unsupported or too large.
    pub(crate) fn parse(bytes: impl Into<Bytes>, served: Option<&str>) -> Result<Self, String> {
        let bytes = bytes.into();
        let written: Written = serde_json::from_slice(&bytes)
            .map_err(|error| format!("it cannot be read: {}", shortened(&error.to_string())))?;
        match written.schema_version {
            Some(2) => {}
            Some(other) => return Err(format!("its version is {other}, and only 2 is copied")),
            None => {
                let said = written.media_type.as_deref().or(served).unwrap_or_default();
                return Err(format!("its type is {:?}, which is not copied", shortened(said)));
            }
        }
        let (refers, types) = match (&written.config, &written.layers, &written.manifests) {
            (Some(config), Some(layers), None) => (Refers::Blobs(blobs(config, layers)?), IMAGES),
            (None, None, Some(manifests)) => (Refers::Manifests(parts(manifests, MANIFEST as u64)?), INDEXES),
            _ => return Err("it is neither that of an image nor an index".to_owned()),
        };
        let said = written.media_type.as_deref().or(served).unwrap_or_default();
        let bare = said.split(';').next().unwrap_or_default().trim();
        let media_type = types.into_iter().find(|known| *known == bare);
        let media_type = media_type.ok_or_else(|| format!("its type is {:?}, which is not copied", shortened(bare)))?;
        Ok(Self { digest: Sha256::of(&bytes), media_type, bytes, refers })
    }
}

fn blobs(config: &Descriptor, layers: &[Descriptor]) -> Result<Vec<Content>, String> {
    if layers.len() >= BLOBS {
        return Err(format!("it has more than {BLOBS} blobs"));
    }
    std::iter::once(config)
        .chain(layers.iter().filter(|layer| !layer.is_foreign()))
        .map(|descriptor| descriptor.part(BYTES))
        .collect()
}

fn parts(descriptors: &[Descriptor], most: u64) -> Result<Vec<Content>, String> {
    descriptors.iter().map(|descriptor| descriptor.part(most)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn descriptor(size: Value) -> Value {
        json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": Sha256::of(b"x").as_str(), "size": size})
    }

    fn image(layers: Vec<Value>) -> Value {
        json!({"schemaVersion": 2, "mediaType": IMAGES[0], "config": descriptor(json!(1)), "layers": layers})
    }

    fn parse(value: &Value) -> Result<ImageManifest, String> {
        ImageManifest::parse(value.to_string().into_bytes(), None)
    }

    #[test]
    fn image_refers_to_its_config_and_layers_without_foreign_ones() {
        let mut foreign = descriptor(json!(5));
        foreign["mediaType"] = json!("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip");
        let found = parse(&image(vec![descriptor(json!(7)), foreign])).unwrap();
        let Refers::Blobs(parts) = &found.refers else { panic!("blobs") };
        assert_eq!(parts.iter().map(|part| part.size).collect::<Vec<_>>(), [1, 7]);
        assert_eq!(found.media_type, IMAGES[0]);
    }

    #[test]
    fn type_is_that_of_the_text_else_that_of_the_answer() {
        let index = json!({"schemaVersion": 2, "manifests": [descriptor(json!(3))]}).to_string().into_bytes();
        let served = format!("{}; charset=utf-8", INDEXES[1]);
        assert_eq!(ImageManifest::parse(index.clone(), Some(&served)).unwrap().media_type, INDEXES[1]);
        for served in [None, Some("text/html"), Some(IMAGES[0])] {
            assert!(ImageManifest::parse(index.clone(), served).unwrap_err().contains("its type is"));
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for size in
            [json!(-1), json!(i64::MIN), json!(BYTES + 1), json!(u64::MAX), json!(1e30), json!("1"), json!(null)]
        {
            assert!(parse(&image(vec![descriptor(size.clone())])).is_err(), "{size}");
        }
    }

    #[test]
    fn what_is_no_manifest_is_refused() {
        let mut sha512 = descriptor(json!(1));
        sha512["digest"] = json!(format!("sha512:{}", "a".repeat(128)));
        let mut both = image(Vec::new());
        both["manifests"] = json!([]);
        let mut v1 = image(Vec::new());
        v1["schemaVersion"] = json!(1);
        let mut other = image(Vec::new());
        other["mediaType"] = json!("application/vnd.docker.distribution.manifest.v1+json");
        for value in
            [image(vec![sha512]), both, v1, other, image(vec![descriptor(json!(1)); 128]), json!([]), json!({})]
        {
            assert!(parse(&value).is_err(), "{value}");
        }
        assert!(ImageManifest::parse(b"<html>".to_vec(), None).unwrap_err().contains("cannot be read"));
        assert!(parse(&image(vec![descriptor(json!(1)); 127])).is_ok());
    }
}
