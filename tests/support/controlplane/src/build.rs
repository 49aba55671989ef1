//! Builds programs with Go.
//!
//! The module takes a Go module and returns the folder with its binaries. A binary appears in the folder complete or
//! not at all. If several processes need a build at once, one process builds and the others wait. The build changes
//! only that folder and Go's caches.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::{KUBERNETES_VERSION, Module, locate};

/// Receives the progress lines, because a build takes minutes and must not look stuck.
pub type Progress<'a> = &'a (dyn Fn(&str) + Sync);

/// Returns the folder of a module's binaries once it has all of them.
pub(crate) fn built(module: &Module, progress: Progress<'_>) -> anyhow::Result<PathBuf> {
    let folder = locate::folder(module)?;
    if !locate::missing(module, &folder).is_empty() {
        build_once(module, &folder, progress)?;
    }
    Ok(folder)
}

/// Builds the missing binaries in `folder`, unless another process has built them meanwhile.
fn build_once(module: &Module, folder: &Path, progress: Progress<'_>) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create the cache folder {}", folder.display()))?;
    let path = folder.join(".lock");
    let lock = File::create(&path).with_context(|| format!("cannot open the lock file {}", path.display()))?;
    if lock.try_lock().is_err() {
        progress("another process builds it: waiting for that");
        lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    }
    let missing = locate::missing(module, folder);
    if missing.is_empty() {
        return Ok(());
    }
    check_go()?;
    progress(&format!("building {}", module.words));
    for (place, (name, package)) in module.mains.iter().enumerate() {
        if missing.contains(name) {
            progress(&format!("building {name} ({} of {})", place + 1, module.mains.len()));
            build_one(module, folder, name, package)?;
        }
    }
    progress(&format!("it is in {}", folder.display()));
    Ok(())
}

fn check_go() -> anyhow::Result<()> {
    let fix = "install Go 1.26 or newer (https://go.dev/dl), or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, \
               kube-controller-manager and kubectl";
    let found = Command::new("go").arg("version").stderr(Stdio::null()).output();
    match found {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => bail!("`go version` ended with {}: {fix}", output.status),
        Err(cause) => Err(cause).with_context(|| format!("cannot build it without Go: {fix}")),
    }
}

/// Builds one binary. A temporary name and a rename ensure that a killed build leaves nothing that looks finished.
fn build_one(module: &Module, folder: &Path, name: &str, package: &str) -> anyhow::Result<()> {
    let unfinished = folder.join(format!(".{name}.{}", std::process::id()));
    let output = Command::new("go")
        .current_dir(module_folder(module))
        .env("CGO_ENABLED", "0")
        .args(["build", "-trimpath", "-ldflags", &linker_flags(), "-tags", module.tags, "-o"])
        .arg(&unfinished)
        .arg(package)
        .output()
        .with_context(|| format!("cannot run `go build {package}`"))?;
    if !output.status.success() {
        let _ = fs::remove_file(&unfinished);
        bail!(
            "`go build {package}` in {} ended with {}:\n{}",
            module_folder(module).display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let target = folder.join(name);
    fs::rename(&unfinished, &target).with_context(|| format!("cannot put {name} at {}", target.display()))
}

/// Returns the linker flags that set the version. Otherwise `kubectl version` and kubectl's check of version skew
/// cannot parse the server's version.
fn linker_flags() -> String {
    let (major, minor) = KUBERNETES_VERSION
        .trim_start_matches('v')
        .split_once('.')
        .map_or(("", ""), |(major, rest)| (major, rest.split('.').next().unwrap_or_default()));
    let set = "-X k8s.io/component-base/version";
    format!("-s -w {set}.gitVersion={KUBERNETES_VERSION} {set}.gitMajor={major} {set}.gitMinor={minor}")
}

fn module_folder(module: &Module) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(module.folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PLANE;

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
        for (name, _) in PLANE.mains {
            fs::write(folder.join(name), "built before").unwrap();
        }
        build_once(&PLANE, &folder, &|line| panic!("nothing is to be built: {line}")).unwrap();
        assert_eq!(fs::read_to_string(folder.join("etcd")).unwrap(), "built before");
        fs::remove_dir_all(&folder).unwrap();
    }
}
