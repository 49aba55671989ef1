//! Folders that may already have the binaries.
//!
//! The module takes folders and the environment, and returns paths. It creates and changes no file.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use crate::{Binaries, Module, PLANE};

/// Returns the cache folder. It outlives a checkout, so that the control plane is built once per machine.
fn cache_folder() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("OARLOCK_CACHE") {
        return Ok(PathBuf::from(folder));
    }
    let home =
        std::env::var_os("HOME").context("cannot tell where to cache the control plane: set OARLOCK_CACHE or HOME")?;
    Ok(Path::new(&home).join(".cache").join("oarlock"))
}

/// Returns the folder of a module's binaries. The path changes with every change of a pinned version.
pub(crate) fn folder(module: &Module) -> anyhow::Result<PathBuf> {
    Ok(cache_folder()?.join(module.cache).join(fingerprint(module)))
}

/// Returns the cache key of a module. 16 hexadecimal digits are plenty.
fn fingerprint(module: &Module) -> String {
    let digest = module.pins.iter().fold(Sha256::new(), Sha256::chain_update).finalize();
    digest.iter().take(8).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the binaries of a folder that the caller has chosen. The crate never adds files to such a folder.
pub(crate) fn given(folder: &Path) -> anyhow::Result<Binaries> {
    let missing = missing(&PLANE, folder);
    if !missing.is_empty() {
        bail!(
            "KUBEBUILDER_ASSETS={} lacks {}: add what is missing, or unset the variable to have the control plane built",
            folder.display(),
            missing.join(", ")
        );
    }
    Ok(Binaries::within(folder))
}

/// Returns the programs of a module that are not in `folder`.
pub(crate) fn missing(module: &Module, folder: &Path) -> Vec<&'static str> {
    module.mains.iter().map(|(name, _)| *name).filter(|name| !folder.join(name).is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_given_folder_is_refused_by_the_names_of_what_it_lacks() {
        let folder = std::env::temp_dir().join(format!("oarlock-locate-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("etcd"), "").unwrap();
        let refusal = given(&folder).unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(refusal.contains("lacks kube-apiserver, kube-controller-manager, kubectl"), "{refusal}");
    }

    #[test]
    fn reported_version_is_the_one_that_is_pinned() {
        assert!(PLANE.pins[0].contains(&format!("k8s.io/kubernetes {} ", crate::KUBERNETES_VERSION)));
    }

    #[test]
    fn fingerprint_is_sixteen_digits() {
        assert_eq!(fingerprint(&PLANE).len(), 16);
    }
}
