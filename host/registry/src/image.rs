//! The reference of an image, with the defaults of Docker, and the address of its registry.

use oci_spec::distribution::Reference;
use reqwest::Url;

use crate::digest::{Digest, shortened};
use crate::hosts::is_loopback;

/// What Docker Hub is called in references.
pub(crate) const HUB: &str = "docker.io";
/// Where it is.
const HUB_ADDRESS: &str = "registry-1.docker.io";

/// A repository of a registry, and one image in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// Its host, with a port where that is not the usual one.
    pub(crate) registry: String,
    pub(crate) repository: String,
    pub(crate) version: Version,
}

/// Which image of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Tag(String),
    Digest(Digest),
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
    /// The image that a text refers to. A digest goes before a tag.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let no = |why: &dyn std::fmt::Display| format!("{:?} is no reference of an image: {why}", shortened(text));
        let reference: Reference = text.parse().map_err(|error| no(&error))?;
        let version = match (reference.digest(), reference.tag()) {
            (Some(digest), _) => Version::Digest(Digest::parse(digest)?),
            (None, tag) => Version::Tag(tag.unwrap_or("latest").to_owned()),
        };
        if let Version::Tag(tag) = &version {
            check_tag(tag)?;
        }
        // The parser takes a first part without a dot for a host, and then for a part of the name.
        if reference.repository().contains(|c: char| c.is_ascii_uppercase()) {
            return Err(no(&"the name has capital letters"));
        }
        let (registry, repository) = (reference.registry().to_lowercase(), reference.repository().to_owned());
        Ok(Self { registry, repository, version })
    }

    /// The address of its registry, which ends in `/`. A registry of this machine has no TLS, unless it is said to have.
    pub(crate) fn address(&self, with_tls: bool) -> Result<Url, String> {
        let host = if self.registry == HUB { HUB_ADDRESS } else { &self.registry };
        let no = |error| format!("{:?} is no host of a registry: {error}", shortened(host));
        let url = Url::parse(&format!("https://{host}/")).map_err(no)?;
        if is_loopback(&url) && !with_tls {
            return Url::parse(&format!("http://{host}/")).map_err(no);
        }
        Ok(url)
    }

    /// The reference of the same repository with this tag.
    pub(crate) fn with_tag(&self, tag: &str) -> String {
        format!("{}/{}:{tag}", self.registry, self.repository)
    }

    /// The whole reference.
    pub(crate) fn whole(&self) -> String {
        match &self.version {
            Version::Tag(tag) => self.with_tag(tag),
            Version::Digest(digest) => format!("{}/{}@{digest}", self.registry, self.repository),
        }
    }
}

/// A tag is a part of a path: it has letters, digits, `_`, `.` and `-`, at most 128, and begins with neither of the last two.
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
    fn digest_goes_before_a_tag() {
        let digest = Digest::of(b"x");
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
