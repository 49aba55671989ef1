//! The HTTP clients for registries. They use rustls with ring, and always verify certificates against the roots of the system.
//!
//! The clients do not follow redirects. No connection to the local machine uses a proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use reqwest::{Client, Url, redirect};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::hosts::is_loopback;
use crate::timeouts::Timeouts;

/// The HTTP clients for one set of roots. Clones share connections.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    network: Client,
    loopback: Client,
}

impl Clients {
    /// Makes clients that trust these roots.
    pub(crate) fn new(roots: RootCertStore, timeouts: &Timeouts) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let begun = || {
            Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .redirect(redirect::Policy::none())
                .referer(false)
                .http1_only()
                .connect_timeout(timeouts.connect)
                .user_agent(concat!("oarlock/", env!("CARGO_PKG_VERSION")))
        };
        // The name `localhost` must not depend on a resolver.
        let this = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].map(|ip| SocketAddr::new(ip, 0));
        let loopback = begun().no_proxy().resolve_to_addrs("localhost", &this).build();
        let built = |client: reqwest::Result<Client>| client.map_err(|error| error.to_string());
        Ok(Self { network: built(begun().build())?, loopback: built(loopback)? })
    }

    /// Returns the client for a URL.
    pub(crate) fn of(&self, url: &Url) -> &Client {
        if is_loopback(url) { &self.loopback } else { &self.network }
    }
}

/// Returns the roots of the system. Without any, no registry is trusted.
pub(crate) fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Returns these roots together with a PEM bundle.
pub(crate) fn with_bundle(mut roots: RootCertStore, pem: &[u8]) -> Result<RootCertStore, String> {
    let mut count = 0_usize;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| format!("the CA bundle is no PEM: {error}"))?;
        roots.add(certificate).map_err(|error| format!("a certificate of the CA bundle cannot be used: {error}"))?;
        count += 1;
    }
    if count == 0 {
        return Err("the CA bundle has no certificate".to_owned());
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_without_certificates_is_refused() {
        for (pem, words) in [
            (&b""[..], "no certificate"),
            (b"hello", "no certificate"),
            (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be used"),
            (b"-----BEGIN CERTIFICATE-----\n%\n-----END CERTIFICATE-----\n", "no PEM"),
        ] {
            let refused = with_bundle(RootCertStore::empty(), pem).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
