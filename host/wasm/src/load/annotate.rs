//! Writes a manifest into a component, for languages whose linker cannot do this.
//!
//! The manifest becomes a custom section of the component and replaces an earlier one. The function may not change anything else.

use oarlock_core::plugin::manifest::Manifest;

use crate::load::inspect::{MANIFEST_SECTION, inspect, truncated};
use crate::rejection::{Rejection, causes};

/// The length of the header before the first section.
const HEADER: usize = 8;
/// The id of custom sections.
const CUSTOM: u8 = 0;

/// Returns the component with `manifest` as the manifest of the component.
pub fn annotate(component: &[u8], manifest: &[u8]) -> Result<Vec<u8>, Rejection> {
    Manifest::parse(manifest).map_err(|error| Rejection::new("ManifestInvalid", causes(&error)))?;
    let without = strip(component)?;
    inspect(&without)?;
    let mut content = Vec::new();
    leb128(MANIFEST_SECTION.len(), &mut content);
    content.extend_from_slice(MANIFEST_SECTION.as_bytes());
    content.extend_from_slice(manifest);
    let mut with = without;
    with.push(CUSTOM);
    leb128(content.len(), &mut with);
    with.extend(content);
    Ok(with)
}

/// Returns the component without a manifest of the component. The manifest of a module inside stays.
fn strip(component: &[u8]) -> Result<Vec<u8>, Rejection> {
    let (header, mut rest) = component.split_at_checked(HEADER).ok_or_else(truncated)?;
    let mut kept = header.to_vec();
    while let Some((&id, after)) = rest.split_first() {
        let (bytes, body) = read_leb128(after).ok_or_else(truncated)?;
        let (content, next) = body.split_at_checked(bytes).ok_or_else(truncated)?;
        let name = read_leb128(content).and_then(|(length, text)| text.get(..length));
        if id != CUSTOM || name != Some(MANIFEST_SECTION.as_bytes()) {
            kept.extend_from_slice(rest.get(..rest.len() - next.len()).unwrap_or_default());
        }
        rest = next;
    }
    Ok(kept)
}

fn leb128(mut value: usize, into: &mut Vec<u8>) {
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            into.push(low);
            return;
        }
        into.push(low | 0x80);
    }
}

fn read_leb128(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0_usize;
    for (at, byte) in bytes.iter().take(5).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(at + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

    fn manifest(name: &str) -> Vec<u8> {
        format!(r#"{{"schema":1,"name":"{name}","version":"1.0.0","action":"A","target":["Pod"]}}"#).into_bytes()
    }

    #[test]
    fn a_manifest_replaces_the_one_that_was_there() {
        let once = annotate(EMPTY, &manifest("one")).unwrap();
        assert_eq!(inspect(&once).unwrap().manifest.unwrap().name, "one");
        let twice = annotate(&once, &manifest("two")).unwrap();
        assert_eq!(inspect(&twice).unwrap().manifest.unwrap().name, "two");
        assert_eq!(twice.len(), once.len());
    }

    #[test]
    fn two_manifests_that_disagree_are_refused() {
        let one = annotate(EMPTY, &manifest("one")).unwrap();
        let two = annotate(EMPTY, &manifest("two")).unwrap();
        let both = [one.as_slice(), &two[HEADER..]].concat();
        assert_eq!(inspect(&both).unwrap_err().reason, "ManifestsDisagree");
        let same = [one.as_slice(), &one[HEADER..]].concat();
        assert!(inspect(&same).is_ok());
    }

    #[test]
    fn an_invalid_manifest_or_component_is_rejected() {
        assert_eq!(annotate(EMPTY, b"{}").unwrap_err().reason, "ManifestInvalid");
        assert_eq!(annotate(b"\0asm", &manifest("one")).unwrap_err().reason, "Truncated");
        assert_eq!(annotate(b"\0asm\x0d\0\x01\0\x07\xff\x7f", &manifest("one")).unwrap_err().reason, "Truncated");
    }
}
