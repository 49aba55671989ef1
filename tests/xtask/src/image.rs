//! Builds the image of the Dockerfile without a container engine.
//!
//! The result is an OCI archive with the optimised static host, the plugins, and the grants of Replace and Restart for
//! those files. The build needs the compiler of the package musl-tools.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::cluster::program;
use crate::plugins;
use crate::sbom;
use crate::workspace::{WASM_TARGET, cargo, output, root, succeed, target_folder};

/// The plugins of an image.
pub(crate) const PLUGINS: [&str; 7] = ["addon", "dumplog", "exportimage", "replace", "restart", "reboot", "preflight"];
/// The features of the host in an image.
pub(crate) const FEATURES: [&str; 3] = ["--no-default-features", "--features", "jemalloc"];
/// The name of the image in its archive.
const NAME: &str = "docker.io/library/oarlock:latest";

/// The files that an image contains.
pub(crate) struct ImageParts<'a> {
    /// The binary of the host.
    pub(crate) host: &'a Path,
    /// The folder with the components of the plugins.
    pub(crate) components: &'a Path,
    /// The bill of materials, if the image has one.
    pub(crate) bill: Option<&'a Path>,
}

/// The command `cargo xtask image`.
pub(crate) fn build() -> anyhow::Result<ExitCode> {
    let built = build_release()?;
    let parts = ImageParts { host: &built.host, components: &built.components, bill: Some(&built.bill) };
    let out = write(&program()?, &root_of(&parts)?, "oarlock.tar")?;
    println!("{} has the image oarlock: `docker load -i` and `ctr images import` take it", out.display());
    Ok(ExitCode::SUCCESS)
}

/// The files of a release that an image contains.
pub(crate) struct Built {
    /// The static binary of the host.
    pub(crate) host: PathBuf,
    /// The folder of the components.
    pub(crate) components: PathBuf,
    /// The bill of materials of the host, as CycloneDX JSON.
    pub(crate) bill: PathBuf,
}

/// Builds the static host and the components so that another folder gives the same bytes.
pub(crate) fn build_release() -> anyhow::Result<Built> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        bail!("musl-gcc is missing: install the package musl-tools");
    }
    succeed(Command::new("rustup").args(["target", "add", &target]))
        .context("cannot add the target of static programs")?;
    plugins::ensure_target()?;
    // The flags differ from those of tests, so the build has a folder of its own.
    let folder = target_folder().join("image");
    let mut components = cargo(&["build", "--release", "--locked", "--target", WASM_TARGET, "--lib"]);
    components.args(PLUGINS.iter().flat_map(|plugin| ["--package", plugin]));
    succeed(in_any_folder(&mut components, &folder)?)?;
    let mut host = cargo(&["build", "--release", "--locked", "--package", "oarlock", "--target", &target]);
    succeed(in_any_folder(host.args(FEATURES), &folder)?)?;
    let built = |target: &str| folder.join(target).join("release");
    let bill = sbom::write(&target, &FEATURES)?;
    Ok(Built { host: built(&target).join("oarlock"), components: built(WASM_TARGET), bill })
}

/// Makes a build independent of its folders: neither the compiler nor the linker writes a path of this machine into a file.
fn in_any_folder<'a>(command: &'a mut Command, folder: &Path) -> anyhow::Result<&'a mut Command> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let home = home.context("neither CARGO_HOME nor HOME is set")?;
    let toolchain = output(Command::new("rustc").current_dir(root()).args(["--print", "sysroot"]))?;
    let places = [
        (root().display().to_string(), "/oarlock"),
        (folder.display().to_string(), "/build"),
        (home.display().to_string(), "/cargo"),
        (toolchain, "/rust"),
    ];
    let rust: Vec<String> = places.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}")).collect();
    let c: Vec<String> = places.iter().map(|(from, to)| format!("-ffile-prefix-map={from}={to}")).collect();
    // The unit separator parts the flags, because a path may have spaces.
    command.env("CARGO_ENCODED_RUSTFLAGS", rust.join("\u{1f}")).env("TARGET_CFLAGS", c.join(" "));
    Ok(command.env("CARGO_TARGET_DIR", folder).env("CARGO_INCREMENTAL", "0"))
}

/// Creates the root folder of an image with this host.
pub(crate) fn root_of(parts: &ImageParts<'_>) -> anyhow::Result<PathBuf> {
    let ImageParts { host, components, bill } = *parts;
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
        std::fs::copy(components.join(&file), &into).with_context(|| format!("cannot copy {file}"))?;
    }
    if let Some(bill) = bill {
        std::fs::copy(bill, root.join("sbom.cdx.json")).context("cannot copy the bill of materials")?;
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
pub(crate) fn write(program: &Path, files: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let out = target_folder().join("images").join(name);
    let revision = output(Command::new("git").current_dir(root()).args(["rev-parse", "HEAD"])).unwrap_or_default();
    let label = |name: &str| format!("org.opencontainers.image.{name}");
    let labels = json!({
        label("title"): "Oarlock", label("description"): "A Kubernetes controller host whose actions are WebAssembly plugins",
        label("version"): env!("CARGO_PKG_VERSION"), label("revision"): revision, label("licenses"): env!("CARGO_PKG_LICENSE"),
    });
    let config = json!({
        "User": "65532:65532", "ExposedPorts": {"8080/tcp": {}}, "Entrypoint": ["/oarlock"], "Labels": labels,
        "Cmd": ["host", "--plugins", "/plugins", "--listen", ":8080", "--log-format", "json"],
    });
    let mut command = Command::new(program);
    command.arg("image").arg("--root").arg(files).args(["--name", NAME, "--config", &config.to_string()]);
    succeed(command.arg("--out").arg(&out))?;
    Ok(out)
}
