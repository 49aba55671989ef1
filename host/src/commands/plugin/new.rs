//! `oarlock plugin new`: creates the crate of a plugin.
//!
//! The crate is the SDK's example under another name, so the SDK's own tests build and test it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::manifest::{JSON_SCHEMA, Manifest};
use oarlock_core::plugin::names::is_dns_label;

use super::grant;
use crate::commands::output::print;

const CARGO: &str = include_str!("../../../../sdk/examples/quarantine/Cargo.toml");
const MANIFEST: &str = include_str!("../../../../sdk/examples/quarantine/manifest.json");
const SOURCE: &str = include_str!("../../../../sdk/examples/quarantine/src/lib.rs");
/// The file that names Oarlock's compiler and the target of plugins.
const TOOLCHAIN: &str = include_str!("../../../../rust-toolchain.toml");
/// A pod and a job on it. The pod has a fixed name, because it belongs to no workload.
const TRY: &str = "\
# A pod, and a job on it: `kubectl apply -f try.yaml`, on `oarlock dev` or a cluster to play with.
apiVersion: v1
kind: Pod
metadata: {name: try-quarantine}
spec:
  containers:
  - {name: pause, image: registry.k8s.io/pause:3.10}
---
apiVersion: apps.kusionstack.io/v1alpha1
kind: OperationJob
metadata: {name: try-quarantine}
spec:
  action: Quarantine
  targets:
  - name: try-quarantine
";
/// The dependency on the SDK in the example's `Cargo.toml`.
const SDK: &str = "oarlock-sdk = { path = \"../..\" }";
/// The SDK in the checkout that built this binary. A released binary does not find it.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk");

pub(super) const EXAMPLES: &str = "\
Examples:
  oarlock plugin new restart-it
  oarlock plugin new restart-it --sdk ~/src/oarlock/sdk
  oarlock plugin new restart-it --sdk https://git.example.com/oarlock.git

The command then prints the next steps.";

/// Arguments of `oarlock plugin new`.
#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// Name of the plugin and of its new folder, such as restart-it
    name: String,
    /// The folder `sdk` of a checkout of Oarlock, or the URL of its git repository [default: the checkout that built
    /// this binary]
    #[arg(long, value_name = "DIR|URL")]
    sdk: Option<String>,
}

/// Creates the crate.
pub(super) fn run(args: &NewArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.as_str();
    if !is_dns_label(name) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        bail!(
            "{name:?} is no name of a plugin: use at most 63 lower-case letters, digits and `-`, and begin with a letter"
        );
    }
    let sdk = dependency(args.sdk.as_deref())?;
    let folder = PathBuf::from(name);
    if folder.exists() {
        bail!("{name} exists already: choose another name, or remove it");
    }
    for (file, text) in files(name, &sdk)? {
        let path = folder.join(file);
        let parent = path.parent().unwrap_or(&folder);
        std::fs::create_dir_all(parent).with_context(|| format!("cannot make the folder {}", parent.display()))?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(&format!(
        "Made the plugin {name}. Next:

  cd {name}
  cargo test
  cargo build --release --target wasm32-wasip2
  oarlock dev --plugins target/wasm32-wasip2/release --grants grants.yaml --kubeconfig-out dev.kubeconfig

and, in a second terminal in the same folder, a job on a pod, as try.yaml has both:

  export KUBECONFIG=dev.kubeconfig
  kubectl apply -f try.yaml
  kubectl get opj -w

What the plugin asks for is in manifest.json, and what is granted in grants.yaml; `oarlock plugin grant FILE` prints the latter anew.
"
    ))
}

/// Returns the line of `Cargo.toml` that names the SDK.
fn dependency(sdk: Option<&str>) -> anyhow::Result<String> {
    if let Some(url) = sdk.filter(|sdk| sdk.contains("://")) {
        return Ok(format!("oarlock-sdk = {{ git = {url:?} }}"));
    }
    let folder = Path::new(sdk.unwrap_or(CHECKOUT));
    if !folder.join("src/lib.rs").is_file() {
        bail!(
            "there is no SDK at {}: name the folder `sdk` of a checkout of Oarlock, or its git repository, with --sdk",
            folder.display()
        );
    }
    let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    Ok(format!("oarlock-sdk = {{ path = {:?} }}", folder.display().to_string()))
}

/// Returns the files of the crate, with their paths in it.
fn files(name: &str, sdk: &str) -> anyhow::Result<Vec<(&'static str, String)>> {
    let type_name: String = name.split('-').map(capitalised).collect();
    let named = |text: &str| text.replace("quarantine", name).replace("Quarantine", &type_name);
    let own = "\n# A workspace of its own: remove this where the crate is a member of another one.\n[workspace]\n";
    let manifest = named(MANIFEST);
    let parsed = Manifest::parse(manifest.as_bytes()).context("the manifest of the example is invalid")?;
    Ok(vec![
        ("Cargo.toml", named(CARGO).replace(SDK, sdk) + own),
        ("src/lib.rs", named(SOURCE)),
        ("manifest.schema.json", JSON_SCHEMA.to_owned()),
        // The grant is for any version, because each build has another digest.
        ("grants.yaml", grant::document(&Grant::of_all(&parsed))?),
        ("manifest.json", manifest),
        ("rust-toolchain.toml", toolchain()),
        ("try.yaml", named(TRY)),
        (".gitignore", "/target\n/dev.kubeconfig\n".to_owned()),
    ])
}

/// Returns the toolchain file: Oarlock's compiler, with the target of plugins. rustup installs both at the first build.
fn toolchain() -> String {
    let lines = TOOLCHAIN.lines().filter(|line| !line.starts_with('#'));
    lines.fold("# What Oarlock is built with.\n".to_owned(), |text, line| text + line + "\n")
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_renamed_everywhere_and_its_dependency_replaced() {
        let files = files("tag-it", "oarlock-sdk = { path = \"/somewhere/sdk\" }").unwrap();
        for (path, text) in &files {
            assert!(!text.to_lowercase().contains("quarantine"), "{path}: {text}");
        }
        let text = |wanted: &str| &files.iter().find(|(path, _)| *path == wanted).unwrap().1;
        assert!(text("Cargo.toml").contains("/somewhere/sdk") && !text("Cargo.toml").contains("../.."));
        assert!(text("src/lib.rs").contains("export!(TagIt, manifest"));
        let [pod, job]: [serde_json::Value; 2] =
            serde_saphyr::from_multiple(text("try.yaml")).unwrap().try_into().unwrap();
        assert_eq!(
            (&job["spec"]["action"], &job["spec"]["targets"][0]["name"]),
            (&"TagIt".into(), &pod["metadata"]["name"])
        );
        let grants = oarlock_wasm::parse_grants(text("grants.yaml")).unwrap();
        let manifest = Manifest::parse(text("manifest.json").as_bytes()).unwrap();
        assert_eq!(oarlock_core::plugin::grant::missing(&manifest, grants.first(), "any"), Vec::<String>::new());
    }
}
