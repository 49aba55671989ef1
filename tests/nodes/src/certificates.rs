//! The certificates and kubeconfigs of a cluster: one authority, the servers, the admin and each node.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::layout::{Layout, PLANE, PORT, Plan, SERVICE, node_address, node_name};

/// The group with all permissions.
const MASTERS: &str = "system:masters";

/// Writes all certificates and kubeconfigs into the folder `plane` of the cluster.
///
/// # Errors
///
/// If the function cannot create a key or write a file.
pub fn write(layout: &Layout, plan: &Plan) -> anyhow::Result<()> {
    let folder = layout.at("plane");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let authority = Authority::new(&folder)?;
    let servers = [PLANE, SERVICE, "127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc"];
    authority.issue("apiserver", None, "kube-apiserver", &servers)?;
    authority.issue("registries", None, "registries", &[PLANE])?;
    // Clients reach the REST API by its Service, and by a port-forward to localhost.
    authority.issue("oarlock-rest", None, "oarlock-rest", &["oarlock-rest.oarlock-system.svc", "localhost"])?;
    for (name, group, user) in [("kubelet-client", MASTERS, "apiserver-kubelet"), ("admin", MASTERS, "admin")] {
        authority.issue(name, Some(group), user, &[])?;
    }
    let within = format!("https://{PLANE}:{PORT}");
    write_private(&layout.kubeconfig("admin"), &authority.kubeconfig("admin", &within)?)?;
    for number in 1..=plan.nodes {
        let name = node_name(number);
        authority.issue(&name, Some("system:nodes"), &format!("system:node:{name}"), &[])?;
        write_private(&layout.kubeconfig(&name), &authority.kubeconfig(&name, &within)?)?;
        // The kubelet serves logs and exec with this certificate.
        authority.issue(&format!("{name}-server"), None, &name, &[&node_address(number), &name])?;
    }
    write_private(&layout.outside(), &authority.kubeconfig("admin", &format!("https://127.0.0.1:{}", plan.port))?)?;
    let key = KeyPair::generate().context("cannot make a key")?;
    write_private(&folder.join("accounts.pub"), &key.public_key_pem())?;
    write_private(&folder.join("accounts.key"), &key.serialize_pem())
}

struct Authority<'a> {
    folder: &'a Path,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl<'a> Authority<'a> {
    fn new(folder: &'a Path) -> anyhow::Result<Self> {
        let key = KeyPair::generate().context("cannot make a key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "oarlock cluster");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key).context("cannot sign the authority")?.pem();
        write_private(&folder.join("ca.crt"), &certificate)?;
        Ok(Self { folder, issuer: Issuer::new(params, key), certificate })
    }

    /// Writes `name.crt` and `name.key` for a user of a group, or for a server with these addresses.
    fn issue(&self, name: &str, group: Option<&str>, user: &str, addresses: &[&str]) -> anyhow::Result<()> {
        let key = KeyPair::generate().context("cannot make a key")?;
        let names: Vec<String> = addresses.iter().map(|&address| address.to_owned()).collect();
        let mut params = CertificateParams::new(names).context("an address of a certificate is none")?;
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).with_context(|| format!("cannot sign for {name}"))?;
        write_private(&self.folder.join(format!("{name}.crt")), &certificate.pem())?;
        write_private(&self.folder.join(format!("{name}.key")), &key.serialize_pem())
    }

    fn kubeconfig(&self, name: &str, server: &str) -> anyhow::Result<String> {
        let read = |suffix: &str| {
            let path = self.folder.join(format!("{name}.{suffix}"));
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "oarlock",
            "clusters": [{"name": "oarlock", "cluster": {"server": server, "certificate-authority-data": base64(&self.certificate)}}],
            "users": [{"name": name, "user": {"client-certificate-data": base64(&read("crt")?), "client-key-data": base64(&read("key")?)}}],
            "contexts": [{"name": "oarlock", "context": {"cluster": "oarlock", "user": name}}],
        });
        serde_json::to_string_pretty(&config).context("cannot write a kubeconfig")
    }
}

fn base64(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// Writes a file that only its owner can read, because it may have a key.
fn write_private(path: &Path, content: &str) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    fs::write(path, content).with_context(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).with_context(failed)
}
