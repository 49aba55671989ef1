//! Tests the SDKs for JavaScript and Python: their kits, their templates, their examples, and the component of CPython.
//!
//! The tools come from npm and PyPI in pinned versions, and stay below the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::phases::Phases;
use crate::python::{self, runs};
use crate::workspace::{binary, cargo_on_all, root, succeed, target_folder};

/// JavaScript code that checks for the oldest supported version.
const OLDEST: &str = "const [major, minor] = process.versions.node.split('.'); \
                      process.exit(major > 20 || (major == 20 && minor >= 19) ? 0 : 1)";
/// The examples, with their folder and the command that tests them. The tests of Python need the packages of this module.
const EXAMPLES: [(&str, &str, &str); 2] = [
    ("label-by-taint", "javascript", "sdk/javascript/examples"),
    ("quarantine-restarts", "python", "sdk/python/examples"),
];
/// The templates without an example. TypeScript has the SDK of JavaScript.
const TYPESCRIPT: &str = "mark-it";

/// Runs all tests of the languages. The host is built already.
pub(crate) fn test(phases: &Phases) {
    let mut found = None;
    let prepared = phases.run("Node.js", ensure_node)
        && phases.run("the tools of Python", || {
            found = Some(python::with(&root().join("sdk/python/tests/requirements.txt"))?);
            Ok(())
        });
    let Some(python) = found.filter(|_| prepared) else {
        return phases.not_run("the SDKs of JavaScript and Python", "what they need is missing");
    };
    phases.run("the kit of JavaScript", || {
        succeed(Command::new("node").args(["--test", "sdk/javascript/tests"]).current_dir(root()))
    });
    phases.run("the kit of Python", || kit_of_python(&python));
    phases.run("the component of Python", || component_of_python(&python));
    for (name, language, folder) in EXAMPLES {
        phases.run(&format!("the example {name}"), || example(name, language, &root().join(folder).join(name)));
    }
    phases.run("the template of TypeScript", || {
        let folder = new(TYPESCRIPT, "typescript")?;
        attempt(&folder)?;
        succeed(Command::new("npm").args(["test", "--silent"]).current_dir(folder))
    });
}

fn ensure_node() -> anyhow::Result<()> {
    if runs(Command::new("node").args(["-e", OLDEST])) && runs(Command::new("npm").arg("--version")) {
        return Ok(());
    }
    bail!("Node.js 20.19 or later with npm is needed as node and npm: install it")
}

/// Runs a module of Python on the SDK, without leaving a cache in the repository.
fn on_sdk(python: &Path, module: &[&str]) -> anyhow::Result<()> {
    let sdk = root().join("sdk/python");
    let mut command = Command::new(python);
    command.arg("-m").args(module).current_dir(&sdk).env("PYTHONPATH", &sdk).env("PYTHONDONTWRITEBYTECODE", "1");
    succeed(&mut command)
}

fn kit_of_python(python: &Path) -> anyhow::Result<()> {
    on_sdk(python, &["pytest", "--quiet", "-p", "no:cacheprovider", "tests"])?;
    on_sdk(python, &["mypy", "--strict", "--cache-dir=/dev/null", "oarlock/__init__.py", "oarlock/kit.py"])
}

/// Builds the golden plugin in Python, unless it was built from the same files, and runs the ignored tests with it.
fn component_of_python(python: &Path) -> anyhow::Result<()> {
    let folder = target_folder().join("languages").join("golden-python");
    let golden = root().join("tests/plugins/golden-languages");
    new_in(&folder, "golden", "python")?;
    let folder = folder.join("golden");
    let plugin = folder.join("golden.wasm");
    for name in ["plugin.py", "manifest.json"] {
        copy(&golden.join(name), &folder.join(name))?;
    }
    let tools = python.parent().context("Python has no folder")?;
    let mut build = Command::new(tools.join("componentize-py"));
    build.args([
        "-q",
        "-d",
        "oarlock/wit",
        "-w",
        "action",
        "componentize",
        "oarlock.component",
        "-o",
        "component.wasm",
    ]);
    succeed(build.current_dir(&folder))?;
    let mut annotate = Command::new(binary("debug", "oarlock"));
    annotate.args(["plugin", "annotate", "component.wasm", "manifest.json", "golden.wasm"]);
    succeed(annotate.current_dir(&folder))?;
    let mut tests = cargo_on_all("test", &["--test", "plugins", "python", "--", "--ignored"]);
    succeed(tests.env("OARLOCK_GOLDEN_PYTHON", plugin))
}

/// Makes a plugin from a template in an empty folder. Returns the folder of the plugin.
fn new(name: &str, language: &str) -> anyhow::Result<PathBuf> {
    let folder = target_folder().join("languages").join(language);
    new_in(&folder, name, language)?;
    Ok(folder.join(name))
}

fn new_in(folder: &Path, name: &str, language: &str) -> anyhow::Result<()> {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut command = Command::new(binary("debug", "oarlock"));
    succeed(command.args(["plugin", "new", name, "--language", language]).current_dir(folder))
}

/// Tests an example natively, and runs its job.
fn example(name: &str, language: &str, files: &Path) -> anyhow::Result<()> {
    let folder = new(name, language)?;
    for entry in std::fs::read_dir(files).with_context(|| format!("cannot read {}", files.display()))? {
        let path = entry.context("cannot read a folder")?.path();
        copy(&path, &folder.join(path.file_name().unwrap_or_default()))?;
    }
    attempt(&folder)?;
    match language {
        "python" => succeed(
            Command::new(folder.join(".venv/bin/python")).args(["-m", "pytest", "--quiet"]).current_dir(&folder),
        ),
        _ => succeed(Command::new("node").arg("--test").current_dir(&folder)),
    }
}

/// Runs `oarlock plugin try`.
fn attempt(folder: &Path) -> anyhow::Result<()> {
    succeed(Command::new(binary("debug", "oarlock")).args(["plugin", "try"]).current_dir(folder))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::copy(from, to).map(drop).with_context(|| format!("cannot copy {}", from.display()))
}
