//! Builds the plugin in a folder, with the tools of its language.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::{read, refused};

/// The component that the tools of a language without a linker leave in the folder.
const COMPONENT: &str = "component.wasm";

/// Builds the plugin in `folder`. Returns its path: `<name>.wasm` in the folder, with the manifest inside.
pub(super) fn build(folder: &Path) -> anyhow::Result<PathBuf> {
    let has = |name: &str| folder.join(name).is_file();
    if has("Cargo.toml") {
        cargo(folder)
    } else if has("package.json") {
        npm(folder)?;
        annotated(folder)
    } else if has("plugin.py") {
        python(folder)?;
        annotated(folder)
    } else {
        bail!(
            "{} has no Cargo.toml, package.json or plugin.py: run the command in the folder of a plugin, or make one with \
             `oarlock plugin new`",
            folder.display()
        )
    }
}

/// Builds a crate, and copies its component into the folder. The linker has written the manifest.
fn cargo(folder: &Path) -> anyhow::Result<PathBuf> {
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--target", "wasm32-wasip2", "--message-format", "json-render-diagnostics"]);
    let output = run(command.current_dir(folder).stdout(Stdio::piped()))?;
    let messages = output.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let files = messages.filter_map(|message| message.get("filenames").and_then(Value::as_array).cloned());
    let mut components = files.flatten().filter_map(|file| file.as_str().map(PathBuf::from));
    let component = components.rfind(|file| file.extension().is_some_and(|extension| extension == "wasm"));
    let component = component.context("the crate has no library of the type cdylib: add it to Cargo.toml")?;
    let facts = oarlock_wasm::inspect(&read(&component)?).map_err(|rejection| refused(&component, &rejection))?;
    let name = facts.manifest.context("the component has no manifest: export the action with `export!`")?.name;
    let plugin = folder.join(format!("{name}.wasm"));
    std::fs::copy(&component, &plugin).with_context(|| format!("cannot write {}", plugin.display()))?;
    Ok(plugin)
}

/// Installs the tools of a folder with JavaScript or TypeScript once, and builds its component.
fn npm(folder: &Path) -> anyhow::Result<()> {
    let npm = |arguments: &[&str]| run(Command::new("npm").args(arguments).current_dir(folder));
    if !folder.join("node_modules").is_dir() {
        npm(&["install", "--no-audit", "--no-fund", "--silent"])?;
    }
    npm(&["run", "build", "--silent"]).map(drop)
}

/// Installs the tools of a folder with Python once, into `.venv`, and builds its component.
fn python(folder: &Path) -> anyhow::Result<()> {
    let tools = folder.join(".venv/bin");
    if !tools.join("componentize-py").is_file() {
        run(Command::new("python3").args(["-m", "venv", ".venv"]).current_dir(folder))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", "requirements.txt"];
        run(Command::new(absolute(&tools)?.join("python")).args(pip).current_dir(folder))?;
    }
    let arguments = ["-q", "-d", "oarlock/wit", "-w", "action", "componentize", "oarlock.component", "-o", COMPONENT];
    run(Command::new(absolute(&tools)?.join("componentize-py")).args(arguments).current_dir(folder)).map(drop)
}

/// Returns a path that does not depend on the working directory.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))
}

/// Writes the manifest into the component. Returns the plugin.
fn annotated(folder: &Path) -> anyhow::Result<PathBuf> {
    let (component, manifest) = (folder.join(COMPONENT), folder.join("manifest.json"));
    let text = std::fs::read(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    let bytes = oarlock_wasm::annotate(&read(&component)?, &text).map_err(|rejection| {
        let wrong = if rejection.reason == "ManifestInvalid" { &manifest } else { &component };
        refused(wrong, &rejection)
    })?;
    let facts = oarlock_wasm::inspect(&bytes).map_err(|rejection| refused(&component, &rejection))?;
    let name = facts.manifest.context("the component has no manifest")?.name;
    let plugin = folder.join(format!("{name}.wasm"));
    std::fs::write(&plugin, bytes).with_context(|| format!("cannot write {}", plugin.display()))?;
    Ok(plugin)
}

/// Runs a tool to its end. Returns its standard output, if the command captures it.
fn run(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let shown = format!("{:?}", command.get_program()).replace('"', "");
    let child = command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot run {shown}: install it"))?;
    let output = child.wait_with_output().with_context(|| format!("cannot wait for {shown}"))?;
    ensure!(output.status.success(), "{shown} failed ({}); its messages are above", output.status);
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::scratch::Scratch;

    #[test]
    fn a_folder_without_a_plugin_is_refused_with_the_next_step() {
        let scratch = Scratch::new().unwrap();
        let refused = build(scratch.path()).unwrap_err().to_string();
        assert!(refused.contains("`oarlock plugin new`"), "{refused}");
    }

    #[test]
    fn a_tool_that_fails_or_is_missing_is_named() {
        let failed = run(&mut Command::new("false")).unwrap_err().to_string();
        assert!(failed.starts_with("false failed"), "{failed}");
        let missing = run(&mut Command::new("no-such-tool")).unwrap_err().to_string();
        assert_eq!(missing, "cannot run no-such-tool: install it");
    }
}
