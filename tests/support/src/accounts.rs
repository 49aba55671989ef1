//! The accounts on a test's control plane, and the files that define them.
//!
//! The files are the token file of the API server, the service-account key pair and kubeconfigs. The host under test has only the
//! account that `oarlock manifests` gives roles to, and no other right.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::workplace::Workplace;

/// The namespace that `oarlock manifests` names.
pub const HOST_NAMESPACE: &str = "oarlock-system";

/// An account that the API server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// May do everything. The test itself uses this account.
    Admin,
    /// The service account of the host. It has exactly the rights that the installed roles give it.
    Host,
    /// The service account of the server beside the host. It has exactly the rights that the installed roles give it.
    Server,
    /// The simulated cluster (scheduler, kubelet, controllers). It may do everything, and the audit log tells it apart from the
    /// test.
    World,
    /// A known account without any right.
    Visitor,
}

impl Account {
    /// All accounts.
    pub const ALL: [Self; 5] = [Self::Admin, Self::Host, Self::World, Self::Visitor, Self::Server];

    /// Returns the user name, as the audit log and field managers show it.
    #[must_use]
    pub fn user(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Host => "system:serviceaccount:oarlock-system:oarlock",
            Self::Server => "system:serviceaccount:oarlock-system:oarlock-server",
            Self::World => "world",
            Self::Visitor => "visitor",
        }
    }

    fn groups(self) -> &'static str {
        match self {
            Self::Admin | Self::World => "system:masters",
            Self::Host | Self::Server => "system:serviceaccounts,system:serviceaccounts:oarlock-system",
            Self::Visitor => "visitors",
        }
    }

    /// Returns the bearer token. A fixed token is safe: the servers listen only on the loopback interface and live for one test
    /// run.
    #[must_use]
    pub fn token(self) -> &'static str {
        match self {
            Self::Admin => "token-of-admin",
            Self::Host => "token-of-host",
            Self::Server => "token-of-server",
            Self::World => "token-of-world",
            Self::Visitor => "token-of-visitor",
        }
    }
}

/// Writes the file for `--token-auth-file`: token, user, user id, groups.
pub(crate) fn write_tokens(place: &Workplace) -> anyhow::Result<PathBuf> {
    let lines: Vec<String> = Account::ALL
        .into_iter()
        .enumerate()
        .map(|(id, account)| format!("{},{},{id},\"{}\"\n", account.token(), account.user(), account.groups()))
        .collect();
    place.write("tokens.csv", &lines.concat())
}

/// The key pair that signs service-account tokens.
#[derive(Debug)]
pub(crate) struct ServiceAccountKeys {
    pub(crate) private: PathBuf,
    pub(crate) public: PathBuf,
}

/// The bytes before the 65 bytes of an uncompressed P-256 point in a SubjectPublicKeyInfo (RFC 5480).
const P256_PUBLIC_KEY_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Makes a fresh key pair and writes it as PEM.
pub(crate) fn write_service_account_keys(place: &Workplace) -> anyhow::Result<ServiceAccountKeys> {
    let random = ring::rand::SystemRandom::new();
    let failed = "cannot generate the service-account key";
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).ok().context(failed)?;
    let pair =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, document.as_ref(), &random).ok().context(failed)?;
    let public = [&P256_PUBLIC_KEY_PREFIX, pair.public_key().as_ref()].concat();
    Ok(ServiceAccountKeys {
        private: place.write("service-account.key", &pem("PRIVATE KEY", document.as_ref()))?,
        public: place.write("service-account.pub", &pem("PUBLIC KEY", &public))?,
    })
}

fn pem(label: &str, content: &[u8]) -> String {
    let text = STANDARD.encode(content);
    // PEM allows 64 characters a line, and base64 is ASCII.
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// Returns a kubeconfig for `account` at `server`. It is JSON and therefore YAML.
pub(crate) fn kubeconfig(account: Account, server: &str, certificates: Option<&Path>) -> anyhow::Result<Value> {
    let cluster = match certificates {
        Some(path) => {
            let content =
                std::fs::read(path).with_context(|| format!("cannot read the certificate at {}", path.display()))?;
            json!({"server": server, "certificate-authority-data": STANDARD.encode(content)})
        }
        None => json!({"server": server}),
    };
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": account.user(), "namespace": "default"}}],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": account.user(), "user": {"token": account.token()}}],
    }))
}

/// Returns a client configuration. The client's own retries are off, so that a test sees every answer of the server.
pub(crate) async fn config(kubeconfig: Value) -> anyhow::Result<kube::Config> {
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).context("cannot read our own kubeconfig")?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .context("cannot use our own kubeconfig")?;
    config.default_retry = false;
    Ok(config)
}
