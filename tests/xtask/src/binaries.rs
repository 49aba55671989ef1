//! The test binaries, one by one.
//!
//! The module reads from cargo's output which binaries cargo has built, and runs them with their output in a log. Two
//! binaries run at once, so the module shows the output of a binary after its end: all lines if the binary failed,
//! otherwise only the results.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::phases::counted;
use crate::workspace::{
    BENCHES, COMPONENTS_VARIABLE, HOST_VARIABLE, SOAK_VARIABLE, WASM_ONLY, binary, cargo, cargo_on_all,
    components_folder, root, succeed, target_folder,
};

/// Test binaries whose output is shown even if they pass, because it has figures.
const TALKING: [&str; 4] = ["crash_sim", "crash_real", "model", "variants"];

/// The bounds of the reasons that the end of a run repeats.
const LINES_OF_A_TEST: usize = 25;
const LINES: usize = 80;
const LINE_CHARS: usize = 300;

/// One test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    /// The name of the binary's target.
    pub(crate) name: String,
    /// The folder of its crate.
    folder: PathBuf,
    executable: PathBuf,
}

/// The flag that makes cargo print the built binaries as JSON.
const TOLD: &str = "--message-format=json-render-diagnostics";

/// Builds all test binaries.
pub(crate) fn build() -> anyhow::Result<Vec<Binary>> {
    built(cargo_on_all("test", &["--no-run", TOLD]))
}

/// Builds the unit tests of the crate that is only a component. All other builds exclude this crate, because its code
/// must not run natively. The call selects the crates of all other tests too, so that cargo reuses their dependencies.
pub(crate) fn build_wasm_only() -> anyhow::Result<Binary> {
    let all = built(cargo(&["test", "--workspace", "--exclude", BENCHES, "--lib", "--no-run", TOLD]))?;
    all.into_iter().find(|binary| binary.name == WASM_ONLY).context("cargo named no tests of it")
}

/// Builds the tests that run each scenario of the benches with a few targets.
pub(crate) fn build_benches() -> anyhow::Result<Binary> {
    let selection = ["test", "--workspace", "--exclude", WASM_ONLY, "--test", "scenarios", "--no-run", TOLD];
    built(cargo(&selection))?.into_iter().next().context("cargo named no tests of the benches")
}

fn built(mut command: Command) -> anyhow::Result<Vec<Binary>> {
    // The output of cargo is longer than the buffer of a pipe, so it goes to a file.
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

/// Returns the test binary in a line of cargo's output, if there is one.
fn read(line: &str) -> Option<Binary> {
    let told: Value = serde_json::from_str(line).ok()?;
    let text = |pointer: &str| told.pointer(pointer).and_then(Value::as_str);
    let is_test = told.pointer("/profile/test").and_then(Value::as_bool) == Some(true);
    let manifest = PathBuf::from(text("/manifest_path").filter(|_| is_test)?);
    let (name, executable) = (text("/target/name")?.to_owned(), PathBuf::from(text("/executable")?));
    Some(Binary { name, folder: manifest.parent()?.to_owned(), executable })
}

impl Binary {
    /// Returns the name of the binary, with the folder of its crate.
    pub(crate) fn title(&self) -> String {
        let folder = self.folder.strip_prefix(root()).unwrap_or(&self.folder).display().to_string();
        format!("{folder} {}", self.name)
    }

    /// Runs the binary on this many threads.
    pub(crate) fn run(&self, threads: usize) -> anyhow::Result<()> {
        let mut command = self.command();
        command.env("RUST_TEST_THREADS", threads.to_string());
        self.logged(command)
    }

    /// Runs all tests of the binary, including those that a test run leaves out.
    pub(crate) fn soak(&self) -> anyhow::Result<()> {
        let mut command = self.command();
        command.env(SOAK_VARIABLE, "1").arg("--include-ignored");
        self.logged(command)
    }

    /// Runs the binary with these variables and arguments, and shows its output at once.
    pub(crate) fn show(&self, variables: &[(&str, OsString)], arguments: &[&str]) -> anyhow::Result<()> {
        let mut command = self.command();
        command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
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
            bail!("{} ended with {status}; its output is in {}\n{}", self.title(), log.display(), reasons(&text));
        }
        Ok(())
    }
}

/// Returns the first lines of each failed test in the output of a test binary.
fn reasons(output: &str) -> String {
    let tests = output.split("\n---- ").skip(1);
    let lines =
        tests.flat_map(|test| test.lines().take_while(|line| *line != "Stack backtrace:").take(LINES_OF_A_TEST));
    lines.map(|line| line.chars().take(LINE_CHARS).collect::<String>()).take(LINES).collect::<Vec<_>>().join("\n")
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
    fn the_first_lines_of_each_failed_test_are_its_reasons() {
        let output = "running 2 tests\n\nfailures:\n\n---- a stdout ----\nError: no\n\nStack backtrace:\n   0: x\n\n---- b stdout ----\npanicked\n";
        assert_eq!(reasons(output), "a stdout ----\nError: no\n\nb stdout ----\npanicked");
    }

    #[test]
    fn the_scenarios_on_real_nodes_are_told_from_the_tests_of_nodes_in_memory() {
        let of = |folder: &str| Binary { name: "nodes".into(), folder: root().join(folder), executable: "n".into() };
        assert_eq!(["host/sim", "tests/nodes"].map(|folder| of(folder).title() == NODES), [false, true]);
    }
}
