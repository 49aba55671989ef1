//! Builds the control plane with Go.
//!
//! Takes a target folder; yields the four binaries in it. A binary appears there complete or not at all, and of several
//! processes that come at once one builds while the others wait. It may not touch anything but that folder and Go's caches.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::{KUBERNETES_VERSION, MAINS, locate};

/// Where progress lines go: a build takes minutes, and nobody should wonder.
pub type Progress<'a> = &'a (dyn Fn(&str) + Sync);

/// Builds what is missing in `folder`, unless another process has done so meanwhile.
pub(crate) fn build_once(folder: &Path, progress: Progress<'_>) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create the cache folder {}", folder.display()))?;
    let path = folder.join(".lock");
    let lock = File::create(&path).with_context(|| format!("cannot open the lock file {}", path.display()))?;
    if lock.try_lock().is_err() {
        progress("another process builds the control plane: waiting for it");
        lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    }
    if locate::complete(folder) {
        return Ok(());
    }
    check_go()?;
    progress(
        "building etcd and Kubernetes from their Go modules: once per machine and version, about 5 minutes on 2 cores",
    );
    for (place, (name, package)) in MAINS.iter().enumerate() {
        if !folder.join(name).is_file() {
            progress(&format!("building {name} ({} of {})", place + 1, MAINS.len()));
            build_one(folder, name, package)?;
        }
    }
    progress(&format!("the control plane is in {}", folder.display()));
    Ok(())
}

fn check_go() -> anyhow::Result<()> {
    let fix = "install Go 1.26 or newer (https://go.dev/dl), or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, \
               kube-controller-manager and kubectl";
    let found = Command::new("go").arg("version").stderr(Stdio::null()).output();
    match found {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => bail!("`go version` ended with {}: {fix}", output.status),
        Err(cause) => Err(cause).with_context(|| format!("cannot build the control plane without Go: {fix}")),
    }
}

/// Builds beside the target and renames, so that a killed build leaves nothing that looks finished.
fn build_one(folder: &Path, name: &str, package: &str) -> anyhow::Result<()> {
    let unfinished = folder.join(format!(".{name}.{}", std::process::id()));
    let output = Command::new("go")
        .current_dir(module_folder())
        .env("CGO_ENABLED", "0")
        .args(["build", "-trimpath", "-ldflags", &linker_flags(), "-o"])
        .arg(&unfinished)
        .arg(package)
        .output()
        .with_context(|| format!("cannot run `go build {package}`"))?;
    if !output.status.success() {
        let _ = fs::remove_file(&unfinished);
        bail!(
            "`go build {package}` in {} ended with {}:\n{}",
            module_folder().display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let target = folder.join(name);
    fs::rename(&unfinished, &target).with_context(|| format!("cannot put {name} at {}", target.display()))
}

/// Without a version `kubectl version` and kubectl's check of version skew cannot parse what the server says.
fn linker_flags() -> String {
    let (major, minor) = KUBERNETES_VERSION
        .trim_start_matches('v')
        .split_once('.')
        .map_or(("", ""), |(major, rest)| (major, rest.split('.').next().unwrap_or_default()));
    let set = "-X k8s.io/component-base/version";
    format!("-s -w {set}.gitVersion={KUBERNETES_VERSION} {set}.gitMajor={major} {set}.gitMinor={minor}")
}

fn module_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linker_flags_name_version_and_its_parts() {
        let flags = linker_flags();
        assert!(
            flags.contains("gitVersion=v1.36.3") && flags.contains("gitMajor=1") && flags.contains("gitMinor=36"),
            "{flags}"
        );
    }

    #[test]
    fn finished_folder_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("oarlock-build-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (name, _) in MAINS {
            fs::write(folder.join(name), "built before").unwrap();
        }
        build_once(&folder, &|line| panic!("nothing is to be built: {line}")).unwrap();
        assert_eq!(fs::read_to_string(folder.join("etcd")).unwrap(), "built before");
        fs::remove_dir_all(&folder).unwrap();
    }
}
