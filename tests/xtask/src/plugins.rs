//! Builds the WebAssembly components.
//!
//! The components are built into `target/wasm32-wasip2/release`. One call of cargo builds all of them, so that they
//! share their dependencies. A build script is not possible, because it would run cargo inside cargo.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};

use crate::workspace::{COMPONENTS, WASM_TARGET, cargo, components_folder, root, succeed};

/// The command `cargo xtask plugins`.
pub(crate) fn build() -> anyhow::Result<ExitCode> {
    ensure_target()?;
    compile()?;
    println!("components are in {}", components_folder().display());
    Ok(ExitCode::SUCCESS)
}

/// Installs the target if it is missing. Usually rustup installs it by itself, because rust-toolchain.toml names it.
pub(crate) fn ensure_target() -> anyhow::Result<()> {
    if target_is_installed()? {
        return Ok(());
    }
    let added = Command::new("rustup").current_dir(root()).args(["target", "add", WASM_TARGET]).status();
    match added {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("`rustup target add {WASM_TARGET}` ended with {status}: run it by hand to see why"),
        Err(cause) => Err(cause).with_context(|| {
            format!("the target {WASM_TARGET} is missing and rustup cannot be run: install Rust by https://rustup.rs")
        }),
    }
}

/// Returns true if the compiler has the standard library of the target.
fn target_is_installed() -> anyhow::Result<bool> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .current_dir(root())
        .args(["--print", "target-libdir", "--target", WASM_TARGET])
        .output()
        .context("cannot run rustc")?;
    let folder = String::from_utf8_lossy(&output.stdout);
    Ok(output.status.success() && Path::new(folder.trim()).is_dir())
}

/// Compiles the components. The target must be installed.
pub(crate) fn compile() -> anyhow::Result<()> {
    let mut command = cargo(&["build", "--release", "--target", WASM_TARGET, "--lib", "--examples"]);
    for component in COMPONENTS {
        command.args(["-p", component]);
    }
    succeed(&mut command)?;
    gather_examples()
}

/// Copies the fixtures that are examples of a crate to the other components, so that one folder has all of them. Cargo
/// writes each example twice, once with a hash in its name.
fn gather_examples() -> anyhow::Result<()> {
    let folder = components_folder();
    let examples = folder.join("examples");
    let entries = std::fs::read_dir(&examples).with_context(|| format!("cannot read {}", examples.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", examples.display()))?.path();
        let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|kind| kind == "wasm")) else {
            continue;
        };
        if name.to_string_lossy().contains('-') {
            continue;
        }
        std::fs::copy(&path, folder.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
    }
    Ok(())
}
