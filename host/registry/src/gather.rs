//! Collects everything that an image refers to.
//!
//! Returns every manifest and every blob once, within limits. It checks the number of manifests before it reads them. An index with missing
//! parts is refused, unless the caller accepts it. Then the index is written again without these parts.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use oarlock_signature::Sha256;

use crate::copy::Copied;
use crate::failed::CopyFailed;
use crate::manifest::{BYTES, Content, ImageManifest, Refers};
use crate::repository::{Repository, mismatch};

/// The most manifests of an image.
const MANIFESTS: usize = 64;
/// The most bytes of all manifests of an image. They are in memory until they are published.
const MANIFEST_BYTES: usize = 8 * 1024 * 1024;
/// The deepest nesting of indexes.
const DEPTH: usize = 2;

/// The manifests and blobs to copy.
#[derive(Debug)]
pub(crate) struct Gathered {
    /// The manifests in the order of their publication: no manifest refers to a later one. The last one is the image itself.
    pub(crate) manifests: Vec<ImageManifest>,
    pub(crate) blobs: Vec<Content>,
    /// The digest of the requested image, and the image to copy. They differ only if parts were left out.
    asked: Sha256,
    root: ImageManifest,
    /// The parts that are left out of the index: platform or type, and digest.
    left_out: Vec<String>,
}

impl Gathered {
    /// Returns the bytes of all manifests and blobs.
    pub(crate) fn bytes(&self) -> u64 {
        let manifests = self.manifests.iter().map(|manifest| manifest.bytes.len() as u64);
        manifests.chain(self.blobs.iter().map(|blob| blob.size)).fold(0, u64::saturating_add)
    }

    /// Returns the digest of the image to copy.
    pub(crate) fn digest(&self) -> &Sha256 {
        &self.root.digest
    }

    /// Checks that a runtime knows the image by this digest: the digest of the index, of a manifest or of a configuration.
    pub(crate) fn check(&self, runs: Option<&str>) -> Result<(), String> {
        let Some(runs) = runs else { return Ok(()) };
        let configuration = |manifest: &ImageManifest| match &manifest.refers {
            Refers::Blobs(blobs) => blobs.first().map(|config| config.digest.clone()),
            Refers::Manifests(_) => None,
        };
        let is_it = |manifest: &ImageManifest| {
            manifest.digest.as_str() == runs || configuration(manifest).is_some_and(|own| own.as_str() == runs)
        };
        if self.manifests.iter().any(is_it) || self.asked.as_str() == runs {
            return Ok(());
        }
        Err(format!("its registry has another one now: what runs is {runs}, which no registry is known to have"))
    }

    /// Adds the omitted parts to the result of a copy.
    pub(crate) fn told(&self, copied: Copied) -> Copied {
        Copied { left_out: self.left_out.clone(), ..copied }
    }
}

/// The missing parts of an index.
#[derive(Default)]
struct Absent {
    digests: BTreeSet<Sha256>,
    named: Vec<String>,
}

impl Absent {
    fn note(&mut self, part: &Content) {
        if self.digests.insert(part.digest.clone()) {
            self.named.push(format!("{} {}", part.about, part.digest).trim().to_owned());
        }
    }
}

/// Reads all manifests below `root`, level by level. A missing manifest is an error, unless `available` is true. Then it is left out.
pub(crate) async fn gather(source: &Repository, root: ImageManifest, available: bool) -> Result<Gathered, CopyFailed> {
    let refuse = |message: String| source.exchange.refuse(format!("image {}: {message}", source.image.whole()));
    let asked = root.digest.clone();
    let mut known = BTreeMap::from([(asked.clone(), root.bytes.len() as u64)]);
    let (mut levels, mut held, mut absent) = (vec![vec![root]], 0, Absent::default());
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
            let Some(got) = part_of(source, &part, available).await? else {
                absent.note(&part);
                continue;
            };
            held += got.bytes.len();
            if held > MANIFEST_BYTES {
                return Err(refuse(format!("its manifests have more than {} MiB", MANIFEST_BYTES / 1024 / 1024)));
            }
            level.push(got);
        }
        levels.push(level);
    }
    let (levels, root) = without(levels, &absent).map_err(&refuse)?;
    let blobs = blobs_of(levels.iter().flatten()).map_err(&refuse)?;
    // The deepest level is first. Within a level, images are before indexes, which may refer to them.
    let mut manifests: Vec<ImageManifest> = levels.into_iter().rev().flatten().collect();
    manifests.sort_by_key(|manifest| matches!(manifest.refers, Refers::Manifests(_)));
    Ok(Gathered { manifests, blobs, asked, root, left_out: absent.named })
}

/// Returns a manifest that an index refers to. If `available` is true, a missing or unsupported manifest gives `None`.
async fn part_of(source: &Repository, part: &Content, available: bool) -> Result<Option<ImageManifest>, CopyFailed> {
    if available && part.is_other {
        return Ok(None);
    }
    let got = source.manifest(part.digest.as_str()).await.map_err(|failed| {
        if !part.is_other {
            return failed;
        }
        let (image, digest) = (source.image.whole(), &part.digest);
        source.exchange.refuse(format!("image {image}: mode copy-available leaves out manifest {digest}: {failed}"))
    });
    let got = match got? {
        Ok(got) => got,
        Err(_) if available => return Ok(None),
        Err(said) => {
            let about = if part.about.is_empty() { String::new() } else { format!(", for {},", part.about) };
            let message = format!(
                "image {}: mode copy-available copies the rest: manifest {}{about} is not there",
                source.image.whole(),
                part.digest
            );
            return Err(source.exchange.refuse(said.after(&message)));
        }
    };
    if got.bytes.len() as u64 != part.size {
        let message = format!("manifest {} has {} bytes, and {} are promised", part.digest, got.bytes.len(), part.size);
        return Err(mismatch(message));
    }
    Ok(Some(got))
}

/// Removes the missing parts from the levels. Returns the rest and the new image. Indexes with missing parts are written again, the deepest
/// first.
fn without(
    levels: Vec<Vec<ImageManifest>>,
    absent: &Absent,
) -> Result<(Vec<Vec<ImageManifest>>, ImageManifest), String> {
    let mut now: BTreeMap<Sha256, Option<Content>> = absent.digests.iter().map(|gone| (gone.clone(), None)).collect();
    let mut left = Vec::with_capacity(levels.len());
    for level in levels.into_iter().rev() {
        let mut kept = Vec::with_capacity(level.len());
        // Indexes of one level may refer to the same images. Images are never rewritten.
        for manifest in level {
            let part = |part: &Content| match now.get(&part.digest) {
                None => Some(part.clone()),
                Some(other) => other.clone().map(|other| Content { about: part.about.clone(), ..other }),
            };
            let before = manifest.digest.clone();
            match manifest.rewritten(part)? {
                None => drop(now.insert(before, None)),
                Some(same) if same.digest == before => kept.push(same),
                Some(other) => {
                    let size = other.bytes.len() as u64;
                    let content = Content { digest: other.digest.clone(), size, about: String::new(), is_other: false };
                    now.insert(before, Some(content));
                    kept.push(other);
                }
            }
        }
        left.push(kept);
    }
    left.reverse();
    let root = left.first().and_then(|level| level.first()).cloned();
    let root = root.ok_or_else(|| format!("nothing of it is there: {}", absent.named.join(", ")))?;
    Ok((left, root))
}

/// Returns the new manifests that a level refers to.
fn new_below(level: &[ImageManifest], known: &mut BTreeMap<Sha256, u64>) -> Result<Vec<Content>, String> {
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

/// Returns the blobs of all manifests, each once.
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

/// Returns true if a part is new. Fails if a known part has another size.
fn is_new(part: &Content, known: &mut BTreeMap<Sha256, u64>) -> Result<bool, String> {
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

    fn part(name: &str, size: u64) -> Content {
        Content { digest: Sha256::of(name.as_bytes()), size, about: String::new(), is_other: false }
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
