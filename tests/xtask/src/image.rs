//! Builds the image of the Dockerfile without a container engine.
//!
//! The result is an OCI archive with the optimised static host, the plugins, and the grants of Replace and Restart for
//! those files. The plugins have the same bytes in each architecture.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::architecture::Architecture;
use crate::cluster::program;
use crate::plugins;
use crate::sbom;
use crate::workspace::{WASM_TARGET, binary, cargo, cargo_on_all, output, root, succeed, target_folder};

/// The plugins of an image.
pub(crate) const PLUGINS: [&str; 7] = ["addon", "dumplog", "exportimage", "replace", "restart", "reboot", "preflight"];
/// The features of the host in an image.
pub(crate) const FEATURES: [&str; 3] = ["--no-default-features", "--features", "jemalloc"];
/// The name of the image in its archive.
const NAME: &str = "docker.io/library/oarlock";
/// The file with the image for this machine, in the folder of images.
pub(crate) const FILE: &str = "oarlock.tar";
/// The tag of an image that is built from this folder.
pub(crate) const LATEST: &str = "latest";

/// The files that an image contains.
pub(crate) struct ImageParts<'a> {
    /// The architecture of the host.
    pub(crate) architecture: Architecture,
    /// The binary of the host.
    pub(crate) host: &'a Path,
    /// A binary of the same host that runs on this machine. It prints the grants.
    pub(crate) printer: &'a Path,
    /// The folder with the components of the plugins.
    pub(crate) components: &'a Path,
    /// The bill of materials, if the image has one.
    pub(crate) bill: Option<&'a Path>,
}

/// The command `cargo xtask image`.
pub(crate) fn build(asked: Option<Architecture>) -> anyhow::Result<ExitCode> {
    let this = Architecture::of_this_machine()?;
    let architecture = asked.unwrap_or(this);
    let built = build_release(architecture)?;
    let mut printer = built.host.clone();
    if architecture != this {
        // The host of the tests prints the same grants, and is often built already.
        succeed(&mut cargo_on_all("build", &["--bin", "oarlock"]))?;
        printer = binary("debug", "oarlock");
    }
    let files = root_of(&built.parts(&printer))?;
    let name = if architecture == this { FILE.to_owned() } else { format!("oarlock-{}.tar", architecture.name()) };
    let out = write(&program()?, &files, &Archive { architecture, file: &name, tag: LATEST })?;
    println!("{} has the image oarlock: `docker load -i` and `ctr images import` take it", out.display());
    Ok(ExitCode::SUCCESS)
}

/// The files of a release that an image contains.
#[derive(Clone)]
pub(crate) struct Built {
    /// The architecture of the host.
    pub(crate) architecture: Architecture,
    /// The static binary of the host.
    pub(crate) host: PathBuf,
    /// The folder of the components.
    pub(crate) components: PathBuf,
    /// The bill of materials of the host, as CycloneDX JSON.
    pub(crate) bill: PathBuf,
}

impl Built {
    /// Returns the parts of the image. `printer` is a host that runs on this machine.
    pub(crate) fn parts<'a>(&'a self, printer: &'a Path) -> ImageParts<'a> {
        let Self { architecture, host, components, bill } = self;
        ImageParts { architecture: *architecture, host, printer, components, bill: Some(bill) }
    }
}

/// Builds the static host and the components so that another folder gives the same bytes.
pub(crate) fn build_release(architecture: Architecture) -> anyhow::Result<Built> {
    let target = architecture.target();
    architecture.check_tools()?;
    succeed(Command::new("rustup").current_dir(root()).args(["target", "add", &target]))
        .context("cannot add the target of static programs")?;
    plugins::ensure_target()?;
    // The flags differ from those of tests, so the build has a folder of its own.
    let folder = target_folder().join("image");
    let mut components = cargo(&["build", "--release", "--locked", "--target", WASM_TARGET, "--lib"]);
    components.args(PLUGINS.iter().flat_map(|plugin| ["--package", plugin]));
    succeed(in_any_folder(&mut components, &folder, &[])?)?;
    let mut host = cargo(&["build", "--release", "--locked", "--package", "oarlock", "--target", &target]);
    host.args(FEATURES).env("TARGET_CC", architecture.c_compiler()).env("TARGET_AR", architecture.tool("ar"));
    host.env(format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_")), architecture.tool("gcc"));
    let mut c_flags: &[&str] = &[];
    if architecture == Architecture::Arm64 {
        // Kernels for Arm have pages of 4, 16 or 64 KiB. An allocator for the largest pages runs on all of them.
        host.env("JEMALLOC_SYS_WITH_LG_PAGE", "16");
        // The compiler's functions for atomics need a symbol of glibc that musl does not have.
        c_flags = &["-mno-outline-atomics"];
    }
    succeed(in_any_folder(&mut host, &folder, c_flags)?)?;
    let built = |target: &str| folder.join(target).join("release");
    let bill = sbom::write(&target, &FEATURES)?;
    Ok(Built { architecture, host: built(&target).join("oarlock"), components: built(WASM_TARGET), bill })
}

/// Makes a build independent of its folders: neither the compiler nor the linker writes a path of this machine into a file.
/// C code is compiled with `c_flags` in addition.
fn in_any_folder<'a>(command: &'a mut Command, folder: &Path, c_flags: &[&str]) -> anyhow::Result<&'a mut Command> {
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
    let mapped = places.iter().map(|(from, to)| format!("-ffile-prefix-map={from}={to}"));
    let c: Vec<String> = c_flags.iter().map(|flag| (*flag).to_owned()).chain(mapped).collect();
    // The unit separator parts the flags, because a path may have spaces.
    command.env("CARGO_ENCODED_RUSTFLAGS", rust.join("\u{1f}")).env("TARGET_CFLAGS", c.join(" "));
    Ok(command.env("CARGO_TARGET_DIR", folder).env("CARGO_INCREMENTAL", "0"))
}

/// Creates the root folder of an image with this host.
pub(crate) fn root_of(parts: &ImageParts<'_>) -> anyhow::Result<PathBuf> {
    let ImageParts { architecture, host, printer, components, bill } = *parts;
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
    succeed(Command::new(architecture.tool("strip")).arg("-o").arg(root.join("oarlock")).arg(host))?;
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
            Command::new(printer).args(["plugin", "grant"]).arg(&file).output().context("cannot run the host")?;
        if !printed.status.success() {
            bail!("no grant for {plugin}: {}", String::from_utf8_lossy(&printed.stderr));
        }
        grants.extend(printed.stdout);
    }
    std::fs::write(root.join("grants.yaml"), grants).context("cannot write the grants")?;
    Ok(root)
}

/// The names and the architecture of an image.
pub(crate) struct Archive<'a> {
    /// The architecture of the host.
    pub(crate) architecture: Architecture,
    /// The name of the file in the folder of images.
    pub(crate) file: &'a str,
    /// The tag of the image.
    pub(crate) tag: &'a str,
}

/// Writes the image with this root. Returns the path of the archive.
pub(crate) fn write(program: &Path, files: &Path, archive: &Archive<'_>) -> anyhow::Result<PathBuf> {
    let out = target_folder().join("images").join(archive.file);
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
    command.arg("image").arg("--root").arg(files).args(["--name", &format!("{NAME}:{}", archive.tag)]);
    command.args(["--architecture", archive.architecture.name(), "--config", &config.to_string()]);
    succeed(command.arg("--out").arg(&out))?;
    Ok(out)
}
