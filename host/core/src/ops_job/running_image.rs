//! The image that a container runs, as its runtime knows it. Source: docs/opsjob.md 12.
//!
//! Takes the `imageID` that a kubelet reports, in the form of any runtime; yields an identity for a registry. May not rely on a tag, because the tag
//! may refer to another image by now.

use serde::{Deserialize, Serialize};

use crate::plugin::task::is_digest;

/// The identity of the image that a container runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunningImage {
    /// A registry has the image under this digest of a manifest or index.
    Pulled(String),
    /// Only the runtime knows the image by this digest, of its configuration or of a manifest that was never pulled.
    Local(String),
    /// The kubelet reports no image.
    #[default]
    Unknown,
}

/// The prefix of the name that containerd gives to an image that was imported without a name.
const IMPORTED: &str = "import-";

impl RunningImage {
    /// Reads the `imageID` of the status of a container.
    ///
    /// | runtime | pulled | made on the node |
    /// |---|---|---|
    /// | containerd | `docker.io/library/busybox@sha256:...` | `sha256:...`, of its configuration |
    /// | CRI-O | `docker.io/library/busybox@sha256:...` | 64 digits, or `localhost/app@sha256:...` |
    /// | Docker | `docker-pullable://busybox@sha256:...` | `docker://sha256:...` |
    pub fn read(image_id: &str) -> Self {
        let image_id = image_id.trim();
        let bare = image_id.split_once("://").map_or(image_id, |(_, bare)| bare);
        if let Some((name, digest)) = bare.rsplit_once('@') {
            return match is_digest(digest) {
                true if is_imported(name) => Self::Local(digest.to_owned()),
                // The name does not count: a runtime shows one of several names under which it knows an image.
                true => Self::Pulled(digest.to_owned()),
                false => Self::Unknown,
            };
        }
        let digest = if bare.starts_with("sha256:") { bare.to_owned() } else { format!("sha256:{bare}") };
        if is_digest(&digest) { Self::Local(digest) } else { Self::Unknown }
    }
}

/// Returns true for a name such as `import-2026-01-01`, which exists in no registry.
fn is_imported(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    last.strip_prefix(IMPORTED)
        .is_some_and(|day| day.len() == 10 && day.bytes().all(|c| c.is_ascii_digit() || c == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_runtime_calls_an_image_its_digest_is_found_or_none_is() {
        let hex = "0123456789abcdef".repeat(4);
        let digest = format!("sha256:{hex}");
        let pulled = || RunningImage::Pulled(digest.clone());
        let local = || RunningImage::Local(digest.clone());
        for (image_id, expected) in [
            (format!("docker.io/library/busybox@{digest}"), pulled()),
            (format!("reg:5000/a/b@{digest}"), pulled()),
            (format!("reg:5000/a/b:1.0@{digest}"), pulled()),
            (format!("busybox:latest@{digest}"), pulled()),
            (format!("localhost/app@{digest}"), pulled()),
            (format!("docker-pullable://nginx@{digest}"), pulled()),
            (format!("docker-pullable://reg:5000/a@{digest}"), pulled()),
            (format!("containerd://quay.io/a@{digest}"), pulled()),
            (format!("docker.io/library/import-2026-01-01@{digest}"), local()),
            (format!("import-2026-01-01@{digest}"), local()),
            (format!("docker.io/library/import-tool@{digest}"), pulled()),
            (format!("@{digest}"), pulled()),
            (digest.clone(), local()),
            (format!("docker://{digest}"), local()),
            (format!(" {hex} "), local()),
            (format!("cri-o://{hex}"), local()),
            (String::new(), RunningImage::Unknown),
            ("sha256:local".to_owned(), RunningImage::Unknown),
            ("busybox:latest".to_owned(), RunningImage::Unknown),
            (format!("busybox@sha512:{hex}{hex}"), RunningImage::Unknown),
            (format!("busybox@sha256:{}", hex.to_ascii_uppercase()), RunningImage::Unknown),
            (format!("busybox@{digest}0"), RunningImage::Unknown),
            (hex.get(1..).unwrap_or_default().to_owned(), RunningImage::Unknown),
            ("docker://".to_owned(), RunningImage::Unknown),
        ] {
            assert_eq!(RunningImage::read(&image_id), expected, "{image_id:?}");
        }
    }
}
