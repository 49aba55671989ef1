//! The hosts to which a registry may redirect a copy.
//!
//! Requests go only to the registry itself and to the hosts that an admin names, by HTTPS. So a malicious registry cannot make the host
//! call a service that only the host can reach.

use std::net::IpAddr;

use reqwest::Url;

/// The purpose of a URL that a registry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedFor {
    Token,
    Redirect,
    Upload,
}

impl NamedFor {
    fn describe(self) -> &'static str {
        match self {
            NamedFor::Token => "the registry sends to HOST for a token",
            NamedFor::Redirect => "the registry redirects to HOST",
            NamedFor::Upload => "the registry wants the upload at HOST",
        }
    }
}

/// The registry, and the other hosts that it may name.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    own: Url,
    named: Vec<(String, Option<u16>)>,
}

impl Hosts {
    /// Makes the hosts for a registry at this URL. `named` has the other hosts as `host[:port]`.
    pub(crate) fn new(own: Url, named: &[String]) -> Result<Self, String> {
        let named = named.iter().map(|text| named_host(text)).collect::<Result<_, _>>()?;
        Ok(Self { own, named })
    }

    pub(crate) fn own(&self) -> &Url {
        &self.own
    }

    /// Returns true if a URL belongs to the registry itself.
    pub(crate) fn is_own(&self, url: &Url) -> bool {
        is_same(&self.own, url)
    }

    /// Checks a URL that the registry names.
    pub(crate) fn check(&self, url: &Url, purpose: NamedFor) -> Result<(), String> {
        let (host, port) = (url.host_str().unwrap_or_default(), url.port());
        let shown = host_of(url);
        let begins = purpose.describe().replace("HOST", &shown);
        let is_plain =
            url.scheme() == "http" && is_loopback(url) && is_loopback(&self.own) && self.own.scheme() == "http";
        if url.scheme() != "https" && !is_plain {
            return Err(format!("{begins} without HTTPS"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(format!("{begins} with credentials in the address"));
        }
        if self.is_own(url) || self.named.iter().any(|(name, at)| name == host && *at == port) {
            return Ok(());
        }
        Err(format!(
            "{begins}, which is not among the hosts that are allowed: name it in `authHosts` of the grant, or for the target by `--export-host`"
        ))
    }
}

/// Returns the host and port of a text `host[:port]`.
fn named_host(text: &str) -> Result<(String, Option<u16>), String> {
    let no = || "a name among the allowed hosts is not of the form host[:port]".to_owned();
    let url = Url::parse(&format!("https://{text}/")).map_err(|_| no())?;
    let is_host_only = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    match url.host_str() {
        Some(host) if is_host_only && url.username().is_empty() && url.password().is_none() => {
            Ok((host.to_owned(), url.port()))
        }
        _ => Err(no()),
    }
}

/// Returns true if two URLs have the same scheme, host and port.
pub(crate) fn is_same(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host_str() == other.host_str()
        && one.port_or_known_default() == other.port_or_known_default()
}

/// Returns true if the host is this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns the host of a URL, with its port if it names one.
pub(crate) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn hosts(own: &str) -> Hosts {
        Hosts::new(url(own), &["auth.example".to_owned(), "CDN.example:8443".to_owned()]).unwrap()
    }

    #[test]
    fn named_hosts_are_followed_at_their_port_only() {
        let hosts = hosts("https://reg.example:5000/");
        for fine in [
            "https://reg.example:5000/x",
            "https://auth.example/token",
            "https://auth.example:443/",
            "https://cdn.example:8443/",
        ] {
            assert_eq!(hosts.check(&url(fine), NamedFor::Redirect), Ok(()), "{fine}");
        }
        for (other, words) in [
            ("https://reg.example/x", "redirects to reg.example, which is not among"),
            ("https://auth.example:444/", "auth.example:444, which is not among"),
            (
                "https://cdn.example/",
                "not among the hosts that are allowed: name it in `authHosts` of the grant, or for the target by `--export-host`",
            ),
            ("https://169.254.169.254/latest", "169.254.169.254"),
            ("http://auth.example/token", "without HTTPS"),
            ("http://127.0.0.1:1/", "without HTTPS"),
            ("file:///etc/passwd", "without HTTPS"),
            ("https://user:pass@auth.example/", "with credentials"),
        ] {
            let refused = hosts.check(&url(other), NamedFor::Redirect).unwrap_err();
            assert!(refused.contains(words) && !refused.contains("pass@"), "{refused}");
        }
    }

    #[test]
    fn registry_of_this_machine_names_itself_without_tls_and_nobody_else() {
        let hosts = hosts("http://127.0.0.1:5000/");
        assert_eq!(hosts.check(&url("http://127.0.0.1:5000/token"), NamedFor::Token), Ok(()));
        let other = hosts.check(&url("http://127.0.0.1:5001/token"), NamedFor::Token).unwrap_err();
        assert!(other.starts_with("the registry sends to 127.0.0.1:5001 for a token, which is not among"), "{other}");
        assert!(hosts.check(&url("http://auth.example/"), NamedFor::Token).is_err());
    }

    #[test]
    fn allowed_hosts_are_hosts() {
        for text in ["a/b", "a b", "", "user@a", "https://a", "a?b", "a:x"] {
            assert!(Hosts::new(url("https://reg.example"), &[text.to_owned()]).is_err(), "{text}");
        }
        assert!(Hosts::new(url("https://reg.example"), &["[::1]:5000".to_owned()]).is_ok());
    }
}
