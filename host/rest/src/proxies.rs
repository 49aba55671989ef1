//! Finds the client's address and scheme of a request that came through trusted proxies. Source: docs/opsjob-rest.md 1.
//!
//! Any client can write headers, so only headers from the address of a trusted proxy count. The client is the last address of a list that
//! is not a trusted proxy. An attacker may have written the addresses before it.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use ipnet::IpNet;

/// The most elements of a list that are read.
const MOST: usize = 64;

/// The addresses of trusted proxies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies(Vec<IpNet>);

/// The client's address and scheme, as the outermost proxy saw them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    /// The address of the client. It is the address of the peer if no header names another one.
    pub(crate) client: String,
    /// True if the client used TLS.
    pub(crate) is_secure: bool,
}

/// The client and scheme that the headers of one kind name.
#[derive(PartialEq, Eq)]
struct Told {
    client: Option<String>,
    is_secure: bool,
}

impl Proxies {
    pub(crate) fn of(ranges: Vec<IpNet>) -> Self {
        Self(ranges)
    }

    /// Returns true if no proxy is trusted.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if an address belongs to a trusted proxy.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|range| range.contains(&address))
    }

    /// Returns the client and scheme of a request from this peer.
    pub(crate) fn reached(&self, peer: SocketAddr, headers: &HeaderMap) -> Reached {
        let direct = Told { client: None, is_secure: false };
        let told = match [self.by_forwarded(headers), self.by_x_forwarded(headers)] {
            _ if !self.has(peer.ip()) => direct,
            [Some(told), None] | [None, Some(told)] => told,
            // A proxy writes one kind of header, and may pass on the other kind as an attacker wrote it.
            [Some(one), Some(other)] if one == other => one,
            _ => direct,
        };
        Reached { client: told.client.unwrap_or_else(|| peer.to_string()), is_secure: told.is_secure }
    }

    /// Reads `X-Forwarded-For` and `X-Forwarded-Proto`.
    fn by_x_forwarded(&self, headers: &HeaderMap) -> Option<Told> {
        let (addresses, schemes) = (elements(headers, "x-forwarded-for"), elements(headers, "x-forwarded-proto"));
        (!addresses.is_empty() || !schemes.is_empty()).then(|| self.told(&addresses, &schemes))
    }

    /// Reads `Forwarded`.
    fn by_forwarded(&self, headers: &HeaderMap) -> Option<Told> {
        let elements = elements(headers, "forwarded");
        let of = |name: &str| elements.iter().filter_map(|element| pair(element, name)).collect::<Vec<String>>();
        (!elements.is_empty()).then(|| self.told(&of("for"), &of("proto")))
    }

    fn told(&self, addresses: &[String], schemes: &[String]) -> Told {
        let is_secure = schemes.first().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
        Told { client: self.client(addresses), is_secure }
    }

    /// Returns the last address that is not a proxy, or the first address if all are proxies.
    fn client(&self, addresses: &[String]) -> Option<String> {
        let mut known = None;
        for address in addresses.iter().rev() {
            let Some(address) = address_of(address) else { break };
            known = Some(address.to_canonical());
            if !self.has(address) {
                break;
            }
        }
        known.map(|address| address.to_string())
    }
}

/// Returns the elements of all headers of this name, in order. A comma in quotes does not end an element.
fn elements(headers: &HeaderMap, name: &str) -> Vec<String> {
    let mut all = Vec::new();
    for value in headers.get_all(name).iter().filter_map(|value| value.to_str().ok()) {
        let mut is_quoted = false;
        let parts = value.split(|c: char| {
            is_quoted ^= c == '"';
            c == ',' && !is_quoted
        });
        all.extend(parts.map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned));
    }
    // The last elements come from the nearest proxies.
    all.split_off(all.len().saturating_sub(MOST))
}

/// Returns the value of a pair in an element of `Forwarded`, without quotes.
fn pair(element: &str, name: &str) -> Option<String> {
    element.split(';').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let value = value.trim();
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
        key.trim().eq_ignore_ascii_case(name).then(|| value.to_owned())
    })
}

/// Returns the address of a node in a list: in brackets, with a port, or alone.
fn address_of(node: &str) -> Option<IpAddr> {
    let node = node.trim();
    if let Some(rest) = node.strip_prefix('[') {
        return rest.split_once(']')?.0.parse().ok();
    }
    let alone = node.parse().ok();
    alone.or_else(|| node.rsplit_once(':').and_then(|(address, _port)| address.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(peer: &str, headers: &[(&'static str, &str)]) -> (String, bool) {
        let ranges = ["10.0.0.0/8", "fd00::/8"].map(|range| range.parse().unwrap());
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let Reached { client, is_secure } = Proxies::of(ranges.to_vec()).reached(peer.parse().unwrap(), &map);
        (client, is_secure)
    }

    const PROXY: &str = "10.0.0.1:4000";

    #[test]
    fn headers_of_a_peer_that_is_no_trusted_proxy_say_nothing() {
        let forged =
            [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-proto", "https"), ("forwarded", "for=1.1.1.1;proto=https")];
        for peer in ["192.0.2.1:4000", "[2001:db8::1]:4000"] {
            assert_eq!(reached(peer, &forged), (peer.to_owned(), false));
        }
        let none = Proxies::default().reached(PROXY.parse().unwrap(), &HeaderMap::new());
        assert_eq!(none, Reached { client: PROXY.to_owned(), is_secure: false });
    }

    #[test]
    fn the_client_is_the_last_address_that_is_no_proxy() {
        for (list, client) in [
            ("192.0.2.7", "192.0.2.7"),
            ("1.1.1.1, 192.0.2.7", "192.0.2.7"),
            ("1.1.1.1,192.0.2.7 , 10.2.3.4", "192.0.2.7"),
            ("192.0.2.7:1234, 10.2.3.4:80", "192.0.2.7"),
            ("[2001:db8::1]:1234, fd00::2", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("10.9.9.9, 10.2.3.4", "10.9.9.9"),
            ("1.1.1.1, unknown, 10.2.3.4", "10.2.3.4"),
            ("1.1.1.1, _hidden", PROXY),
            ("1.1.1.1, ';--", PROXY),
            (",,", PROXY),
        ] {
            assert_eq!(reached(PROXY, &[("x-forwarded-for", list)]).0, client, "{list}");
        }
        assert_eq!(reached("[::ffff:10.0.0.1]:4000", &[("x-forwarded-for", "192.0.2.7")]).0, "192.0.2.7");
        let two = [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "192.0.2.7")];
        assert_eq!(reached(PROXY, &two).0, "192.0.2.7", "the headers are one list");
    }

    #[test]
    fn forwarded_is_read_with_its_lists_quotes_and_capitals() {
        for (header, client, is_secure) in [
            ("for=192.0.2.7", "192.0.2.7", false),
            ("For=192.0.2.7; Proto=HTTPS ;by=10.0.0.1", "192.0.2.7", true),
            ("for=1.1.1.1;proto=https, for=\"192.0.2.7:80\", for=10.1.1.1;proto=http", "192.0.2.7", true),
            ("proto=http;for=\"[2001:db8::1]:80\"", "2001:db8::1", false),
            ("for=\"a, for=1.1.1.1\", for=192.0.2.7", "192.0.2.7", false),
            ("proto=https", PROXY, true),
            ("for", PROXY, false),
        ] {
            assert_eq!(reached(PROXY, &[("forwarded", header)]), (client.to_owned(), is_secure), "{header}");
        }
    }

    #[test]
    fn the_first_word_of_the_scheme_counts_in_any_case() {
        for (word, is_secure) in
            [("https", true), ("HTTPS", true), (" Https , http", true), ("http, https", false), ("httpsx", false)]
        {
            assert_eq!(reached(PROXY, &[("x-forwarded-proto", word)]), (PROXY.to_owned(), is_secure), "{word}");
        }
    }

    #[test]
    fn two_kinds_of_headers_that_differ_say_nothing() {
        let equal = [
            ("forwarded", "for=192.0.2.7;proto=https"),
            ("x-forwarded-for", "192.0.2.7"),
            ("x-forwarded-proto", "https"),
        ];
        assert_eq!(reached(PROXY, &equal), ("192.0.2.7".to_owned(), true));
        let made_up = [("forwarded", "for=1.1.1.1;proto=https"), ("x-forwarded-for", "192.0.2.7")];
        assert_eq!(reached(PROXY, &made_up), (PROXY.to_owned(), false));
    }
}
