//! Scenarios on real nodes.
//!
//! The module needs a Linux machine and root. The exit code is the outcome. It builds missing programs and an image of
//! the host. The host in the image is the host of the other tests: not optimised, with the libraries that it is linked
//! to.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};

use crate::architecture::Architecture;
use crate::binaries::Binary;
use crate::cluster::{base_images, is_root};
use crate::image::{self, Archive, ImageParts, LATEST};
use crate::phases::Phases;
use crate::suite;
use crate::workspace::{binary, components_folder, root, target_folder};

/// The title of the test binary. The name alone is not enough, because the in-memory API has a binary with the same
/// name.
pub(crate) const NODES: &str = "tests/nodes nodes";

/// The command `cargo xtask test nodes`.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    if !is_root() {
        bail!("nodes need root: run it as root, with Rust and Go for root");
    }
    let phases = Phases::default();
    let found = suite::build(&phases).unwrap_or_default();
    match found.iter().find(|binary| binary.title() == NODES) {
        Some(binary) => drop(phases.run("scenarios on real nodes", || play(binary, None))),
        None => phases.not_run("scenarios on real nodes", "what they need is missing"),
    }
    Ok(phases.close())
}

/// The scenario of Helm, and the tag of the earlier image in it.
const RELEASES: &str = "a_release_adopts_is_upgraded_rolled_back_and_uninstalled_amid_jobs";
const EARLIER: &str = "earlier";

/// An earlier release.
pub(crate) struct Earlier {
    /// Its host in a test build.
    pub(crate) binary: PathBuf,
    /// The folder of its chart.
    pub(crate) chart: PathBuf,
}

/// Runs all scenarios. With an earlier release, runs only the scenario of Helm, which begins with the chart and the image
/// of that release.
pub(crate) fn play(test: &Binary, earlier: Option<&Earlier>) -> anyhow::Result<()> {
    let plane = controlplane::binaries(&|line| println!("control plane: {line}"))?;
    let node = controlplane::node_binaries(&|line| println!("nodes: {line}"))?;
    let program = binary("debug", "oarlock-nodes");
    let mut images = Vec::from(base_images(&program, &node.containers.join("busybox"))?);
    images.push(host_image(&program, &binary("debug", "oarlock"), LATEST)?);
    if let Some(earlier) = earlier {
        images.push(host_image(&program, &earlier.binary, EARLIER)?);
    }
    let folder = plane.etcd.parent().context("etcd is in no folder")?;
    let images = std::env::join_paths(images).context("a path has a colon")?;
    let path = |path: &Path| OsString::from(path);
    let mut variables = vec![
        ("OARLOCK_NODES_FOLDER", "/var/tmp/oarlock-nodes-test".into()),
        ("OARLOCK_NODES_PLANE", path(folder)),
        ("OARLOCK_NODES_KUBELET", path(&node.kubelet)),
        ("OARLOCK_NODES_CONTAINERS", path(&node.containers)),
        ("OARLOCK_NODES_NERDCTL", path(&node.nerdctl)),
        ("OARLOCK_NODES_HELM", path(&controlplane::helm(&|line| println!("helm: {line}"))?)),
        ("OARLOCK_NODES_STORE", path(&controlplane::s3_server(&|line| println!("store: {line}"))?)),
        ("OARLOCK_NODES_DATABASE", path(&controlplane::postgres()?)),
        ("OARLOCK_NODES_IMAGES", images),
        ("OARLOCK_NODES_GRANTS", path(&grants()?)),
    ];
    variables.extend(earlier.map(|earlier| ("OARLOCK_NODES_EARLIER_CHART", path(&earlier.chart))));
    test.show(&variables, if earlier.is_some() { &[RELEASES] } else { &[] })
}

/// The plugin of the SDK's examples that runs scripts in the tests.
const SCRIPTS: &str = "run-script";

/// Writes the grants of the shipped plugins and of [`SCRIPTS`]. Checks may also read logs of the node, and images may
/// come from a registry of the cluster.
fn grants() -> anyhow::Result<PathBuf> {
    let mut all = String::new();
    let shipped = image::PLUGINS.map(|plugin| root().join("plugins").join(plugin));
    for folder in shipped.into_iter().chain([root().join("sdk/examples").join(SCRIPTS)]) {
        let path = folder.join("grant.yaml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        all += if text.starts_with("---") { "" } else { "---\n" };
        all += &text;
    }
    // This registry of the cluster needs a password.
    let all = all.replace("registries: [docker.io,", "registries: [10.99.0.1:5444, docker.io,");
    let all = all.replace("{name: check-pod}", "{name: check-pod, hostPaths: [/var/log]}");
    let path = target_folder().join("images").join("grants.yaml");
    std::fs::write(&path, all).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Writes the image of a host in its test build, with the libraries that the host is linked to.
fn host_image(program: &Path, host: &Path, tag: &str) -> anyhow::Result<PathBuf> {
    let (architecture, components) = (Architecture::of_this_machine()?, components_folder());
    let parts = ImageParts { architecture, host, printer: host, components: &components, bill: None };
    let root = image::root_of(&parts)?;
    let linked = Command::new("ldd").arg(root.join("oarlock")).output().context("cannot run ldd")?;
    for library in String::from_utf8_lossy(&linked.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
        let place = root.join(library.trim_start_matches('/'));
        std::fs::create_dir_all(place.parent().unwrap_or(&root)).context("cannot create a folder")?;
        std::fs::copy(library, &place).with_context(|| format!("cannot copy {library}"))?;
    }
    let scripts = format!("{}.wasm", SCRIPTS.replace('-', "_"));
    std::fs::copy(components_folder().join(&scripts), root.join("plugins").join(&scripts))
        .with_context(|| format!("cannot copy {scripts}"))?;
    let file = format!("oarlock-debug-{tag}.tar");
    image::write(program, &root, &Archive { architecture, file: &file, tag })
}
