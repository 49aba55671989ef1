//! Credentials for registries, and the Secrets that contain them.

use std::collections::HashMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

use crate::image::HUB;

/// Base64 with or without padding, because Secrets have both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The credentials of a registry user.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name of the user.
    pub username: String,
    /// The password of the user, or a token in its place.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Returns the value of the header `Authorization`.
    pub(crate) fn basic(&self) -> String {
        format!(
            "Basic {}",
            base64::engine::general_purpose::STANDARD.encode(format!("{}:{}", self.username, self.password))
        )
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: HashMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl Entry {
    fn credentials(self) -> Option<Credentials> {
        if let Some(auth) = self.auth.filter(|auth| !auth.is_empty()) {
            let text = String::from_utf8(BASE64.decode(auth.trim()).ok()?).ok()?;
            let (username, password) = text.split_once(':')?;
            // Docker pads the field with zeros.
            let password = password.trim_end_matches('\0');
            return Some(Credentials { username: username.to_owned(), password: password.to_owned() });
        }
        Some(Credentials { username: self.username?, password: self.password? })
    }
}

/// Returns the credentials for a registry in a Secret of type `kubernetes.io/dockerconfigjson`.
///
/// `registry` is a host, with its port unless that is the default port, or a host and a repository. Among several entries for a host, the
/// entry with the longest matching path wins. An entry without a path wins over an entry for another repository.
pub fn credentials_in(dockerconfigjson: &[u8], registry: &str) -> Option<Credentials> {
    let config: DockerConfig = serde_json::from_slice(dockerconfigjson).ok()?;
    let (host, path) = host_and_path(registry);
    let mut found: Vec<(usize, String, Entry)> = config
        .auths
        .into_iter()
        .filter_map(|(key, entry)| {
            let (key_host, key_path) = host_and_path(&key);
            let is_within = path == key_path || path.starts_with(&format!("{key_path}/")) || key_path.is_empty();
            // Without a repository, any entry for the host fits.
            let rank = if is_within { key_path.len() + 1 } else { 0 };
            (key_host == host && (is_within || path.is_empty())).then_some((rank, key, entry))
        })
        .collect();
    // Equal entries are sorted by key, so that the choice is deterministic.
    found.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    found.into_iter().find_map(|(_, _, entry)| entry.credentials())
}

/// Returns the host of a key, and its path without the version of the protocol.
fn host_and_path(key: &str) -> (String, String) {
    let bare = key.trim().trim_start_matches("https://").trim_start_matches("http://");
    let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
    let host = match host.to_lowercase().as_str() {
        "index.docker.io" | "registry-1.docker.io" | "registry.hub.docker.com" => HUB.to_owned(),
        host => host.trim_end_matches(":443").to_owned(),
    };
    let path = match path.trim_end_matches('/') {
        "v1" | "v2" => "",
        path => path,
    };
    (host, path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(config: &str, registry: &str) -> Option<String> {
        credentials_in(config.as_bytes(), registry).map(|found| format!("{}/{}", found.username, found.password))
    }

    #[test]
    fn docker_hub_is_found_by_each_of_its_names() {
        for key in ["https://index.docker.io/v1/", "docker.io", "index.docker.io", "https://registry-1.docker.io/v2/"] {
            let config = format!(r#"{{"auths": {{"{key}": {{"auth": "bWU6aHVuOnRlcg=="}}}}}}"#);
            assert_eq!(user(&config, "docker.io").as_deref(), Some("me/hun:ter"), "{key}");
            assert_eq!(user(&config, "quay.io"), None);
        }
    }

    #[test]
    fn port_belongs_to_the_host() {
        let config = r#"{"auths": {"reg:5000": {"username": "a", "password": "b"}, "other": {"auth": "eDp5"}}}"#;
        assert_eq!(user(config, "reg:5000").as_deref(), Some("a/b"));
        assert_eq!(user(config, "reg"), None);
        assert_eq!(user(config, "reg:5000/team/app").as_deref(), Some("a/b"));
        assert_eq!(user(config, "OTHER:443").as_deref(), Some("x/y"));
    }

    #[test]
    fn longest_path_of_the_repository_is_taken() {
        let config = r#"{"auths": {
            "reg:5000/team": {"username": "team", "password": "1"},
            "https://reg:5000/team/app/": {"username": "app", "password": "2"},
            "reg:5000/teams": {"username": "teams", "password": "3"}
        }}"#;
        assert_eq!(user(config, "reg:5000/team/app").as_deref(), Some("app/2"));
        assert_eq!(user(config, "reg:5000/team/web").as_deref(), Some("team/1"));
        assert_eq!(user(config, "reg:5000/elsewhere"), None);
        assert_eq!(user(config, "reg:5000").as_deref(), Some("app/2"), "any of the host, and the same each time");
    }

    #[test]
    fn what_is_no_config_has_none() {
        for config in ["", "[]", "{}", r#"{"auths": {"r": {}}}"#, r#"{"auths": {"r": {"auth": "%"}}}"#] {
            assert_eq!(user(config, "r"), None, "{config}");
        }
        assert_eq!(user(r#"{"auths": {"r": {"auth": "bWU6cA"}}}"#, "r").as_deref(), Some("me/p"), "without padding");
    }

    #[test]
    fn password_is_not_shown() {
        let shown = format!("{:?}", Credentials { username: "me".into(), password: "hunter2".into() });
        assert!(shown.contains("me") && !shown.contains("hunter2"), "{shown}");
    }
}
