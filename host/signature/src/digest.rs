//! The digest of a manifest, a blob or a file. Only SHA-256 is supported.

use std::fmt;
use std::fmt::Write as _;

use ring::digest::{Context, SHA256};

/// A digest: `sha256:` and 64 hexadecimal digits in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sha256(String);

impl Sha256 {
    /// Reads a digest from a text.
    ///
    /// # Errors
    /// If the text is no SHA-256 digest.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        match text.split_once(':') {
            Some(("sha256", hex)) if hex.len() == 64 && hex.bytes().all(is_hex) => Ok(Self(text.to_owned())),
            _ => Err(format!("{:?} is no digest sha256:…, the only kind that is copied", shortened(text))),
        }
    }

    /// Returns the digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hash = Hash::new();
        hash.add(bytes);
        hash.digest()
    }

    /// Returns `sha256:` and the 64 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the 64 digits.
    pub fn hex(&self) -> &str {
        self.0.strip_prefix("sha256:").unwrap_or_default()
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A digest under computation.
pub struct Hash(Context);

impl Default for Hash {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Hash {
    /// Returns the hash of no bytes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all added bytes.
    pub fn digest(self) -> Sha256 {
        let mut text = String::with_capacity(71);
        text.push_str("sha256:");
        for byte in self.0.finish().as_ref() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Sha256(text)
    }
}

/// Returns the beginning of a foreign text, for messages.
pub fn shortened(text: &str) -> String {
    text.chars().take(128).collect()
}

/// Returns the beginning of a text, with a mark if the text was longer.
pub fn shortened_to(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_nothing_is_the_known_one() {
        let nothing = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Sha256::of(b"").as_str(), nothing);
        assert_eq!(Sha256::parse(nothing), Ok(Sha256::of(b"")));
    }

    #[test]
    fn other_kinds_and_forms_are_refused() {
        let hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for text in [
            format!("sha512:{hex}{hex}"),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha256:{hex}0"),
            format!("sha256:../{}", hex.get(3..).unwrap()),
            hex.to_owned(),
        ] {
            assert!(Sha256::parse(&text).unwrap_err().contains("no digest"), "{text}");
        }
    }
}
