//! The test binaries, one by one.
//!
//! Takes what cargo says that it has built; yields binaries that are run with their output in a log. What a binary printed is
//! shown when it has ended, since two of them run at once: all of it where it failed.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::phases::counted;
use crate::workspace::{
    COMPONENTS_VARIABLE, HOST_VARIABLE, SOAK_VARIABLE, WASM_ONLY, binary, cargo, cargo_on_all, components_folder, root,
    succeed, target_folder,
};

/// Tests whose figures are shown although they pass.
const TALKING: [&str; 4] = ["crash_sim", "crash_real", "model", "variants"];

/// One test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    /// Name of its target.
    pub(crate) name: String,
    /// The folder of its crate.
    folder: PathBuf,
    executable: PathBuf,
}

/// How cargo says what it has built.
const TOLD: &str = "--message-format=json-render-diagnostics";

/// Builds all of them.
pub(crate) fn build() -> anyhow::Result<Vec<Binary>> {
    built(cargo_on_all("test", &["--no-run", TOLD]))
}

/// Builds the tests of what the crate that is nothing but a component knows of itself: what it does must not run natively. With the
/// whole workspace selected, its dependencies are those that were compiled for all others.
pub(crate) fn build_wasm_only() -> anyhow::Result<Binary> {
    let all = built(cargo(&["test", "--workspace", "--lib", "--no-run", TOLD]))?;
    all.into_iter().find(|binary| binary.name == WASM_ONLY).context("cargo named no tests of it")
}

fn built(mut command: Command) -> anyhow::Result<Vec<Binary>> {
    // The output of cargo is longer than a pipe holds, so it goes to a file.
    let folder = target_folder().join("test-logs");
    std::fs::create_dir_all(&folder).context("cannot create the folder of logs")?;
    let told = folder.join("cargo.json");
    let output = File::create(&told).with_context(|| format!("cannot create {}", told.display()))?;
    let status = counted(command.stdout(output)).context("cannot run cargo")?;
    if !status.success() {
        bail!("the tests cannot be built");
    }
    let told = std::fs::read_to_string(&told).with_context(|| format!("cannot read {}", told.display()))?;
    let found: Vec<Binary> = told.lines().filter_map(read).collect();
    if found.is_empty() {
        bail!("cargo named no test binary");
    }
    Ok(found)
}

/// The test binary that a line of cargo's tells of, if it does.
fn read(line: &str) -> Option<Binary> {
    let told: Value = serde_json::from_str(line).ok()?;
    let text = |pointer: &str| told.pointer(pointer).and_then(Value::as_str);
    let is_test = told.pointer("/profile/test").and_then(Value::as_bool) == Some(true);
    let manifest = PathBuf::from(text("/manifest_path").filter(|_| is_test)?);
    let (name, executable) = (text("/target/name")?.to_owned(), PathBuf::from(text("/executable")?));
    Some(Binary { name, folder: manifest.parent()?.to_owned(), executable })
}

impl Binary {
    /// Its name, with the folder of its crate.
    pub(crate) fn title(&self) -> String {
        let folder = self.folder.strip_prefix(root()).unwrap_or(&self.folder).display().to_string();
        format!("{folder} {}", self.name)
    }

    /// Runs it on so many threads.
    pub(crate) fn run(&self, threads: usize) -> anyhow::Result<()> {
        let mut command = self.command();
        command.env("RUST_TEST_THREADS", threads.to_string());
        self.logged(command)
    }

    /// Runs all of its tests, also those that a test run leaves out.
    pub(crate) fn soak(&self) -> anyhow::Result<()> {
        let mut command = self.command();
        command.env(SOAK_VARIABLE, "1").arg("--include-ignored");
        self.logged(command)
    }

    /// Runs it with these variables, its output shown as it comes.
    pub(crate) fn show(&self, variables: &[(&str, OsString)]) -> anyhow::Result<()> {
        let mut command = self.command();
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        succeed(&mut command)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.env(COMPONENTS_VARIABLE, components_folder()).env(HOST_VARIABLE, binary("debug", "oarlock"));
        if TALKING.contains(&self.name.as_str()) {
            command.arg("--nocapture");
        }
        command
    }

    fn logged(&self, mut command: Command) -> anyhow::Result<()> {
        let folder = target_folder().join("test-logs");
        std::fs::create_dir_all(&folder).context("cannot create the folder of logs")?;
        let log = folder.join(format!("{}.log", self.title().replace(['/', ' '], "-")));
        let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let errors = output.try_clone().context("cannot share the log")?;
        let status = counted(command.stdin(Stdio::null()).stdout(output).stderr(errors));
        let status = status.with_context(|| format!("cannot run {}", self.executable.display()))?;
        let text = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
        let all = !status.success() || TALKING.contains(&self.name.as_str());
        let shown = text.lines().filter(|line| all || line.starts_with("test result")).collect::<Vec<_>>().join("\n");
        println!("--- {}\n{shown}", self.title());
        if !status.success() {
            bail!("{} ended with {status}; its output is in {}", self.title(), log.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::NODES;

    #[test]
    fn test_binaries_are_found_in_what_cargo_says_and_nothing_else_is() {
        let line = |test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/r/tests/Cargo.toml","target":{{"name":"sim"}},"profile":{{"test":{test}}},"executable":"/r/target/debug/deps/sim-1"}}"#
            )
        };
        let found =
            Binary { name: "sim".into(), folder: "/r/tests".into(), executable: "/r/target/debug/deps/sim-1".into() };
        assert_eq!(read(&line(true)), Some(found));
        assert_eq!(read(&line(false)), None);
        assert_eq!(read("warning: not JSON"), None);
    }

    #[test]
    fn the_scenarios_on_real_nodes_are_told_from_the_tests_of_nodes_in_memory() {
        let of = |folder: &str| Binary { name: "nodes".into(), folder: root().join(folder), executable: "n".into() };
        assert_eq!(["host/sim", "tests/nodes"].map(|folder| of(folder).title() == NODES), [false, true]);
    }
}
