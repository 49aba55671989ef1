//! The flags for the registry to which OpsJobs export images.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use oarlock_core::plugin::task::is_registry;
use oarlock_registry::Registries;

use crate::images::ExportRegistry;

/// The flags of the export registry.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ExportArgs {
    /// Registry to which OpsJobs of the type exportimage copy images, by HTTPS [default: the host exports no images]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = parse_registry)]
    export_registry: Option<String>,
    /// Secret with the credentials of the export registry, of the type kubernetes.io/dockerconfigjson, in the namespace
    /// of the lease
    ///
    /// Commits of containers use the Secret of this name in the namespace oarlock-tasks, which may also hold a ca.crt.
    #[arg(long, value_name = "NAME", requires = "export_registry", value_parser = NonEmptyStringValueParser::new())]
    export_secret: Option<String>,
    /// PEM file with CA certificates for the export registry, in addition to those of the system
    #[arg(long, value_name = "FILE", requires = "export_registry")]
    export_ca: Option<PathBuf>,
    /// Another host to which the export registry may redirect for a token or an upload; repeat the flag for several
    /// hosts
    #[arg(long = "export-host", value_name = "HOST[:PORT]", requires = "export_registry", value_parser = parse_registry)]
    export_hosts: Vec<String>,
}

pub(super) fn parse_registry(text: &str) -> Result<String, String> {
    // Docker reads `registry/name` as a name at docker.io if `registry` has no dot and no colon and is not `localhost`.
    let is_host = text.contains(['.', ':']) || text == "localhost";
    match is_registry(text) && is_host {
        true => Ok(text.to_owned()),
        false => Err("write HOST or HOST:PORT, such as harbor.example.com or registry:443".to_owned()),
    }
}

impl ExportArgs {
    /// Returns the export registry, if the flags name one. `namespace` is the namespace of its Secret.
    pub(crate) fn registry(self, namespace: &str) -> anyhow::Result<Option<ExportRegistry>> {
        let Self { export_registry, export_secret, export_ca, export_hosts } = self;
        let Some(registry) = export_registry else { return Ok(None) };
        let read = |path: PathBuf| {
            std::fs::read(&path).with_context(|| format!("cannot read the certificates in {}", path.display()))
        };
        let ca = export_ca.map(read).transpose()?;
        if let Some(ca) = &ca {
            Registries::new().and_then(|client| client.trusting(ca)).context("--export-ca")?;
        }
        Ok(Some(ExportRegistry {
            registry,
            secret: export_secret.map(|name| (namespace.to_owned(), name)),
            ca,
            hosts: export_hosts,
            mirror: None,
        }))
    }
}
