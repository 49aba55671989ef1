//! The reference of an image, with the defaults of Docker, and the URL of its registry.
//!
//! The parser of `oci-spec` is not used: its regular expression takes 18 MiB, more than a copy. A test compares the two parsers.

use oarlock_signature::{Sha256, shortened};
use reqwest::Url;

use crate::hosts::is_loopback;

/// The name of Docker Hub in references.
pub(crate) const HUB: &str = "docker.io";
/// The former name of Docker Hub.
const HUB_OF_OLD: &str = "index.docker.io";
/// The host of Docker Hub.
const HUB_ADDRESS: &str = "registry-1.docker.io";

/// The most bytes of a repository name.
const LONGEST_NAME: usize = 255;

/// An image in a repository of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// The host of the registry, with a port unless it is the default port.
    pub(crate) registry: String,
    pub(crate) repository: String,
    pub(crate) version: Version,
}

/// The version of an image in its repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Tag(String),
    Digest(Sha256),
}

impl Version {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Version::Tag(tag) => tag,
            Version::Digest(digest) => digest.as_str(),
        }
    }
}

impl Image {
    /// Reads an image reference. If it has a tag and a digest, the digest counts.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let no = |why: String| format!("{:?} is no reference of an image: {why}", shortened(text));
        let (rest, digest) = text.split_once('@').map_or((text, None), |(rest, digest)| (rest, Some(digest)));
        // The text after the last colon is a tag, unless it belongs to a port.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        tag.map_or(Ok(()), check_tag).map_err(no)?;
        let version = match digest {
            Some(digest) => Version::Digest(Sha256::parse(digest).map_err(no)?),
            None => Version::Tag(tag.unwrap_or("latest").to_owned()),
        };
        let (registry, repository) = registry_and_repository(name);
        if !is_host(&registry) || repository.len() > LONGEST_NAME || !repository.split('/').all(is_part) {
            return Err(
                no("a name is of lower case letters and digits, with single ., _ or - between them".to_owned()),
            );
        }
        Ok(Self { registry, repository, version })
    }

    /// Returns the URL of the registry, which ends in `/`. A registry on this machine has no TLS unless `with_tls` is true.
    pub(crate) fn address(&self, with_tls: bool) -> Result<Url, String> {
        let host = if self.registry == HUB { HUB_ADDRESS } else { &self.registry };
        let no = |error| format!("{:?} is no host of a registry: {error}", shortened(host));
        let url = Url::parse(&format!("https://{host}/")).map_err(no)?;
        if is_loopback(&url) && !with_tls {
            return Url::parse(&format!("http://{host}/")).map_err(no);
        }
        Ok(url)
    }

    /// Returns a reference to the same repository with this tag.
    pub(crate) fn with_tag(&self, tag: &str) -> String {
        format!("{}/{}:{tag}", self.registry, self.repository)
    }

    /// Returns the whole reference.
    pub(crate) fn whole(&self) -> String {
        match &self.version {
            Version::Tag(tag) => self.with_tag(tag),
            Version::Digest(digest) => format!("{}/{}@{digest}", self.registry, self.repository),
        }
    }
}

/// Splits a name into registry and repository. The first part is a registry if it looks like a host. Otherwise, the name is on Docker Hub.
fn registry_and_repository(name: &str) -> (String, String) {
    let looks_like_host = |part: &str| part.contains(['.', ':']) || part == "localhost";
    let (registry, repository) = match name.split_once('/') {
        Some((first, rest)) if looks_like_host(first) => (first.to_lowercase(), rest),
        _ => (HUB.to_owned(), name),
    };
    let registry = if registry == HUB_OF_OLD { HUB.to_owned() } else { registry };
    if registry == HUB && !repository.contains('/') {
        return (registry, format!("library/{repository}"));
    }
    (registry, repository.to_owned())
}

/// Returns true if a text is `host[:port]`.
fn is_host(text: &str) -> bool {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        let is_fine = label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
        is_fine && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    host.split('.').all(is_label) && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Returns true if a text is one part of a repository name. A part never has a special meaning in a path, as `..` has.
fn is_part(part: &str) -> bool {
    let is_word = |word: &str| word.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let words: Vec<&str> = part.split(['.', '_', '-']).collect();
    let has_ends = [words.first(), words.last()].iter().all(|word| word.is_some_and(|word| !word.is_empty()));
    // A separator is one dot, one or two underscores, or dashes. Any other combination is invalid.
    let is_between = !["..", "._", "_.", ".-", "-.", "_-", "-_", "___"].iter().any(|pair| part.contains(pair));
    has_ends && is_between && words.into_iter().all(is_word)
}

/// Checks a tag, because a tag becomes a part of a path. A tag has at most 128 letters, digits, `_`, `.` and `-`, and does not begin with
/// `.` or `-`.
pub(crate) fn check_tag(tag: &str) -> Result<(), String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let begins = tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if begins && tag.len() <= 128 && tag.chars().all(is_fine) {
        return Ok(());
    }
    Err(format!("{:?} is no tag", shortened(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_registry_are_those_of_docker_hub() {
        let image = Image::parse("busybox").unwrap();
        assert_eq!(image.whole(), "docker.io/library/busybox:latest");
        assert_eq!(image.address(false).unwrap().as_str(), "https://registry-1.docker.io/");
        assert_eq!(Image::parse("index.docker.io/a/b:1").unwrap().registry, HUB);
    }

    #[test]
    fn references_are_those_of_oci_spec() {
        use oci_spec::distribution::Reference;
        let digest = Sha256::of(b"x");
        let names = [
            "busybox",
            "test.com",
            "a/b",
            "localhost/a",
            "localhost:5000/a/b/c",
            "Reg.Example/a-b_c.d",
            "reg:5000/a__b",
            "docker.io/a",
            "index.docker.io/a",
            "reg.example/a---b",
            "reg.example/a..b",
            "reg.example/-a",
            "reg.example/a-",
            "reg.example/a_-b",
            "reg.example/a//b",
            "reg.example/",
            "/a",
            "-reg.example/a",
            "reg.example:x/a",
            "a b",
            "reg.example/a/../b",
            "xn--n3h.com/my",
            "reg.example/a.-b",
            "reg.example/a___b",
            "reg.example/a_b",
            "reg..example/a",
            "é/a",
            "a?b",
            "a#b",
            "a%2f",
        ];
        for name in names {
            for end in
                ["", ":1", ":v1.0_x-y", ":", ":.x", &format!("@{digest}"), &format!(":1@{digest}"), "@", "@sha256:00"]
            {
                let text = format!("{name}{end}");
                let mine = Image::parse(&text).ok();
                let theirs = text.parse::<Reference>().ok();
                let same = theirs.map(|found| {
                    let version = match (found.digest(), found.tag()) {
                        (Some(digest), _) => Version::Digest(Sha256::parse(digest).unwrap()),
                        (None, tag) => Version::Tag(tag.unwrap().to_owned()),
                    };
                    let (registry, repository) = (found.registry().to_lowercase(), found.repository().to_owned());
                    Image { registry, repository, version }
                });
                assert_eq!(mine, same, "{text}");
            }
        }
    }

    #[test]
    fn digest_goes_before_a_tag() {
        let digest = Sha256::of(b"x");
        let image = Image::parse(&format!("reg.example:5000/a/b:1@{digest}")).unwrap();
        assert_eq!(image.version, Version::Digest(digest.clone()));
        assert_eq!(image.whole(), format!("reg.example:5000/a/b@{digest}"));
    }

    #[test]
    fn only_this_machine_is_reached_without_tls() {
        for (registry, address) in [
            ("127.0.0.1:5000", "http://127.0.0.1:5000/"),
            ("127.9.9.9:5000", "http://127.9.9.9:5000/"),
            ("localhost:5000", "http://localhost:5000/"),
            ("127.0.0.1.example.com", "https://127.0.0.1.example.com/"),
            ("localhost.example.com", "https://localhost.example.com/"),
            ("10.0.0.1:5000", "https://10.0.0.1:5000/"),
        ] {
            let image = Image::parse(&format!("{registry}/a:1")).unwrap();
            assert_eq!(image.address(false).unwrap().as_str(), address);
            assert_eq!(image.address(true).unwrap().scheme(), "https");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        let sha512 = format!("reg.example/a@sha512:{}", "a".repeat(128));
        for text in ["", "A/b", "a:ü", "a/../b", "https://reg.example/a", "reg.example/a:x/y", "a@sha256:00", &sha512]
        {
            assert!(Image::parse(text).is_err(), "{text}");
        }
        for tag in ["", ".", "..", "-a", "a/b", "a?b", &"a".repeat(129)] {
            assert!(check_tag(tag).is_err(), "{tag}");
        }
        assert!(check_tag("_1.0-rc.1").is_ok());
    }
}
