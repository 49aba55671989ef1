//! All that an image refers to.
//!
//! Takes the manifest of an image or an index; yields every manifest below it and every blob, each once. May not get more than the
//! bounds allow: an index is refused before its manifests are got.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::failed::CopyFailed;
use crate::manifest::{BYTES, Content, ImageManifest, Refers};
use crate::repository::{Repository, mismatch};

/// Most manifests of an image.
const MANIFESTS: usize = 64;
/// Most bytes of all manifests of an image together, because they are held until they are published.
const MANIFEST_BYTES: usize = 8 * 1024 * 1024;
/// How deep indexes may be nested.
const DEPTH: usize = 2;

/// What is copied.
#[derive(Debug)]
pub(crate) struct Gathered {
    /// In the order in which they are published: none refers to a later one. The last is the image itself.
    pub(crate) manifests: Vec<ImageManifest>,
    pub(crate) blobs: Vec<Content>,
}

impl Gathered {
    /// Bytes of it all.
    pub(crate) fn bytes(&self) -> u64 {
        let manifests = self.manifests.iter().map(|manifest| manifest.bytes.len() as u64);
        manifests.chain(self.blobs.iter().map(|blob| blob.size)).fold(0, u64::saturating_add)
    }
}

/// Gets all manifests below `root`, level by level.
pub(crate) async fn gather(source: &Repository, root: ImageManifest) -> Result<Gathered, CopyFailed> {
    let refuse = |words: String| source.exchange.refuse(format!("image {}: {words}", source.image.whole()));
    let mut known = BTreeMap::from([(root.digest.clone(), root.bytes.len() as u64)]);
    let (mut levels, mut held) = (vec![vec![root]], 0);
    loop {
        let above = levels.last().map(Vec::as_slice).unwrap_or_default();
        let below = new_below(above, &mut known).map_err(&refuse)?;
        if below.is_empty() {
            break;
        }
        if levels.len() > DEPTH {
            return Err(refuse(format!("its indexes are nested more than {DEPTH} deep")));
        }
        let mut level = Vec::with_capacity(below.len());
        for part in below {
            let got = source.manifest(part.digest.as_str()).await?;
            let got = got.ok_or_else(|| refuse(format!("there is no manifest {}", part.digest)))?;
            if got.bytes.len() as u64 != part.size {
                let words =
                    format!("manifest {} has {} bytes, and {} are promised", part.digest, got.bytes.len(), part.size);
                return Err(mismatch(words));
            }
            held += got.bytes.len();
            if held > MANIFEST_BYTES {
                return Err(refuse(format!("its manifests have more than {} MiB", MANIFEST_BYTES / 1024 / 1024)));
            }
            level.push(got);
        }
        levels.push(level);
    }
    let blobs = blobs_of(levels.iter().flatten()).map_err(&refuse)?;
    // Deepest first, and images before indexes of their level, which may refer to them.
    let mut manifests: Vec<ImageManifest> = levels.into_iter().rev().flatten().collect();
    manifests.sort_by_key(|manifest| matches!(manifest.refers, Refers::Manifests(_)));
    Ok(Gathered { manifests, blobs })
}

/// The manifests that a level refers to, and that are not known yet.
fn new_below(
    level: &[ImageManifest],
    known: &mut BTreeMap<crate::digest::Sha256, u64>,
) -> Result<Vec<Content>, String> {
    let mut below = Vec::new();
    for manifest in level {
        let Refers::Manifests(parts) = &manifest.refers else { continue };
        for part in parts {
            if is_new(part, known)? {
                below.push(part.clone());
            }
            if known.len() > MANIFESTS {
                return Err(format!("it has more than {MANIFESTS} manifests"));
            }
        }
    }
    Ok(below)
}

/// The blobs of all manifests.
fn blobs_of<'a>(manifests: impl Iterator<Item = &'a ImageManifest>) -> Result<Vec<Content>, String> {
    let (mut known, mut blobs, mut bytes) = (BTreeMap::new(), Vec::new(), 0_u64);
    for manifest in manifests {
        let Refers::Blobs(parts) = &manifest.refers else { continue };
        for part in parts {
            if is_new(part, &mut known)? {
                bytes = bytes.saturating_add(part.size);
                blobs.push(part.clone());
            }
            if bytes > BYTES {
                return Err(format!("it has more than {} GiB", BYTES >> 30));
            }
        }
    }
    Ok(blobs)
}

/// Whether a part is seen for the first time. Its size is the same each time.
fn is_new(part: &Content, known: &mut BTreeMap<crate::digest::Sha256, u64>) -> Result<bool, String> {
    match known.entry(part.digest.clone()) {
        Entry::Vacant(entry) => {
            entry.insert(part.size);
            Ok(true)
        }
        Entry::Occupied(entry) if *entry.get() == part.size => Ok(false),
        Entry::Occupied(entry) => {
            Err(format!("{} is said to have {} bytes, and {} bytes", part.digest, entry.get(), part.size))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Sha256;

    fn part(name: &str, size: u64) -> Content {
        Content { digest: Sha256::of(name.as_bytes()), size }
    }

    fn manifest(name: &str, refers: Refers) -> ImageManifest {
        ImageManifest { digest: Sha256::of(name.as_bytes()), media_type: "", bytes: Vec::new().into(), refers }
    }

    #[test]
    fn blob_of_several_manifests_is_copied_once() {
        let one = manifest("one", Refers::Blobs(vec![part("a", 1), part("shared", 5), part("shared", 5)]));
        let two = manifest("two", Refers::Blobs(vec![part("b", 2), part("shared", 5)]));
        assert_eq!(blobs_of([&one, &two].into_iter()), Ok(vec![part("a", 1), part("shared", 5), part("b", 2)]));
    }

    #[test]
    fn two_sizes_of_one_blob_are_refused() {
        let one = manifest("one", Refers::Blobs(vec![part("a", 1), part("a", 2)]));
        assert!(blobs_of([&one].into_iter()).unwrap_err().contains("1 bytes, and 2 bytes"));
    }

    #[test]
    fn more_than_256_gib_are_refused() {
        let one = manifest("one", Refers::Blobs(vec![part("a", BYTES), part("b", 1)]));
        assert!(blobs_of([&one].into_iter()).unwrap_err().contains("more than 256 GiB"));
    }

    #[test]
    fn index_that_refers_to_itself_has_nothing_new() {
        let index = manifest("index", Refers::Manifests(vec![part("index", 7), part("index", 7)]));
        let mut known = BTreeMap::from([(index.digest.clone(), 7)]);
        assert_eq!(new_below(&[index], &mut known), Ok(Vec::new()));
    }

    #[test]
    fn sixty_four_manifests_are_enough() {
        let of = |count| Refers::Manifests((0..count).map(|n| part(&format!("{n}"), 1)).collect());
        assert_eq!(new_below(&[manifest("index", of(64))], &mut BTreeMap::new()).unwrap().len(), 64);
        assert!(new_below(&[manifest("index", of(65))], &mut BTreeMap::new()).is_err());
    }
}
