//! Builds the image of the Dockerfile without a container engine.
//!
//! The result is an OCI archive with the optimised static host, the plugins, and the grants of Replace and Restart for
//! those files. The build needs the compiler of the package musl-tools.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};

use crate::cluster::program;
use crate::plugins;
use crate::workspace::{cargo, components_folder, succeed, target_folder};

/// The plugins of an image.
pub(crate) const PLUGINS: [&str; 7] = ["addon", "dumplog", "exportimage", "replace", "restart", "reboot", "preflight"];

/// The command `cargo xtask image`.
pub(crate) fn build() -> anyhow::Result<ExitCode> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        bail!("musl-gcc is missing: install the package musl-tools");
    }
    succeed(Command::new("rustup").args(["target", "add", &target]))
        .context("cannot add the target of static programs")?;
    plugins::ensure_target()?;
    plugins::compile()?;
    let features = ["--no-default-features", "--features", "jemalloc"];
    let mut command = cargo(&["build", "--release", "--locked", "--package", "oarlock", "--target", &target]);
    succeed(command.args(features))?;
    let host = target_folder().join(&target).join("release").join("oarlock");
    let root = root_of(&host)?;
    let out = write(&program()?, &root, "oarlock.tar")?;
    println!("{} has the image oarlock: `docker load -i` and `ctr images import` take it", out.display());
    Ok(ExitCode::SUCCESS)
}

/// Creates the root folder of an image with this host.
pub(crate) fn root_of(host: &Path) -> anyhow::Result<PathBuf> {
    let root = target_folder().join("images").join("host");
    // Files of an earlier image must not get into this image.
    let _ = std::fs::remove_dir_all(&root);
    for name in ["plugins", "tmp"] {
        std::fs::create_dir_all(root.join(name))
            .with_context(|| format!("cannot create {name} in {}", root.display()))?;
    }
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777))
        .context("cannot open a folder to all")?;
    succeed(Command::new("strip").arg("-o").arg(root.join("oarlock")).arg(host))?;
    for plugin in PLUGINS {
        let file = format!("{plugin}.wasm");
        let into = root.join("plugins").join(&file);
        std::fs::copy(components_folder().join(&file), &into).with_context(|| format!("cannot copy {file}"))?;
    }
    let (certificates, own) = (Path::new("/etc/ssl/certs/ca-certificates.crt"), root.join("etc/ssl/certs"));
    if certificates.exists() {
        std::fs::create_dir_all(&own).context("cannot create a folder")?;
        std::fs::copy(certificates, own.join("ca-certificates.crt")).context("cannot copy the certificates")?;
    }
    let mut grants = Vec::new();
    for plugin in ["replace", "restart"] {
        let file = root.join("plugins").join(format!("{plugin}.wasm"));
        let printed =
            Command::new(host).args(["plugin", "grant"]).arg(&file).output().context("cannot run the host")?;
        if !printed.status.success() {
            bail!("no grant for {plugin}: {}", String::from_utf8_lossy(&printed.stderr));
        }
        grants.extend(printed.stdout);
    }
    std::fs::write(root.join("grants.yaml"), grants).context("cannot write the grants")?;
    Ok(root)
}

/// Writes the image with this root into a file of this name.
pub(crate) fn write(program: &Path, root: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let out = target_folder().join("images").join(name);
    let config = r#"{"User": "65532:65532", "ExposedPorts": {"8080/tcp": {}}, "Entrypoint": ["/oarlock"],
        "Cmd": ["host", "--plugins", "/plugins", "--listen", ":8080", "--log-format", "json"]}"#;
    let mut command = Command::new(program);
    command.arg("image").arg("--root").arg(root).args([
        "--name",
        "docker.io/library/oarlock:latest",
        "--config",
        config,
    ]);
    succeed(command.arg("--out").arg(&out))?;
    Ok(out)
}
