//! Programs that come from the machine's packages: a container runtime with seccomp, and a static shell.
//!
//! The module takes installed programs. If a program is missing, the module unpacks its package into the cache, and
//! installs nothing. This works on Debian and its derivatives; on other systems the error names the package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::Progress;

/// The programs: name, package, path in the package, and whether an installed program can be used instead.
const PROGRAMS: [(&str, &str, &str, bool); 2] =
    [("runc", "runc", "usr/sbin/runc", true), ("busybox", "busybox-static", "bin/busybox", false)];

/// The folder of PostgreSQL on Debian and its derivatives, with a folder for each version.
const POSTGRES: &str = "/usr/lib/postgresql";

/// Returns the folder of the PostgreSQL programs, of the newest installed version.
pub(crate) fn postgres() -> Option<PathBuf> {
    let has = |folder: &Path| ["initdb", "postgres", "psql"].iter().all(|program| folder.join(program).is_file());
    let version = |folder: &Path| folder.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    let of_packages = fs::read_dir(POSTGRES).into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let newest = of_packages.filter(|folder| has(folder)).max_by_key(|folder| version(folder));
    newest.or_else(|| std::env::split_paths(&std::env::var_os("PATH")?).find(|folder| has(folder)))
}

/// Copies the programs into `folder`.
pub(crate) fn fetch(folder: &Path, progress: Progress<'_>) -> anyhow::Result<()> {
    for (name, package, place, installed_will_do) in PROGRAMS {
        let target = folder.join(name);
        if target.exists() {
            continue;
        }
        let installed = installed_will_do.then(|| installed(name)).flatten();
        let found = match installed {
            Some(path) => path,
            None => {
                progress(&format!("unpacking the package {package}"));
                unpacked(folder, package)?.join(place)
            }
        };
        let draft = folder.join(format!(".{name}.{}", std::process::id()));
        fs::copy(&found, &draft).with_context(|| format!("cannot copy {}", found.display()))?;
        fs::rename(&draft, &target).with_context(|| format!("cannot put {name} at {}", target.display()))?;
        let _ = fs::remove_dir_all(folder.join(format!(".package-{package}")));
    }
    Ok(())
}

fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).chain(["/usr/sbin".into()]).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Unpacks a package. Returns the folder with its files.
fn unpacked(folder: &Path, package: &str) -> anyhow::Result<PathBuf> {
    let into = folder.join(format!(".package-{package}"));
    fs::create_dir_all(&into).with_context(|| format!("cannot create {}", into.display()))?;
    let fix = || format!("install the package {package}");
    run(Command::new("apt-get").current_dir(&into).args(["download", package])).with_context(fix)?;
    let archive = fs::read_dir(&into).with_context(fix)?.flatten().map(|entry| entry.path());
    let archive = archive.into_iter().find(|path| path.extension().is_some_and(|end| end == "deb"));
    let archive = archive.with_context(fix)?;
    run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&into)).with_context(fix)?;
    Ok(into)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!(
            "{} ended with {}: {}",
            command.get_program().display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
