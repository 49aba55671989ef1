//! The files of a new plugin in each language. All of them are part of this executable.
//!
//! Each template is the example `quarantine` of its SDK under another name, so tests of the SDKs build and test it.

use clap::ValueEnum;

/// A language of plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Language {
    /// Rust, with cargo
    Rust,
    /// JavaScript, with Node.js and npm
    #[value(name = "javascript")]
    JavaScript,
    /// TypeScript, with Node.js and npm
    #[value(name = "typescript")]
    TypeScript,
    /// Python, with CPython and pip
    Python,
}

/// A file of a template: its path in the folder of the plugin, and its text.
pub(super) type TemplateFile = (&'static str, &'static str);

/// Defines a list of files that are below one folder of the repository.
macro_rules! files {
    ($folder:literal: $($path:literal from $file:literal),+ $(,)?) => {
        [$(($path, include_str!(concat!("../../../../../", $folder, "/", $file)))),+]
    };
}

const RUST: [TemplateFile; 2] =
    files!["sdk/examples/quarantine": "Cargo.toml" from "Cargo.toml", "src/lib.rs" from "src/lib.rs"];
const JAVASCRIPT: [TemplateFile; 3] = files!["sdk/javascript/example": "package.json" from "package.json",
    "plugin.js" from "plugin.js", "plugin.test.js" from "plugin.test.js"];
const TYPESCRIPT: [TemplateFile; 4] = files!["sdk/typescript/example": "package.json" from "package.json",
    "tsconfig.json" from "tsconfig.json", "plugin.ts" from "plugin.ts", "plugin.test.ts" from "plugin.test.ts"];
const PYTHON: [TemplateFile; 3] = files!["sdk/python/example": "plugin.py" from "plugin.py",
    "test_plugin.py" from "test_plugin.py", "requirements.txt" from "requirements.txt"];
const JAVASCRIPT_SDK: [TemplateFile; 5] = files!["sdk/javascript/oarlock": "oarlock/sdk.js" from "sdk.js",
    "oarlock/sdk.d.ts" from "sdk.d.ts", "oarlock/kit.js" from "kit.js", "oarlock/kit.d.ts" from "kit.d.ts",
    "oarlock/component.js" from "component.js"];
const PYTHON_SDK: [TemplateFile; 4] = files!["sdk/python/oarlock": "oarlock/__init__.py" from "__init__.py",
    "oarlock/kit.py" from "kit.py", "oarlock/component.py" from "component.py", "oarlock/py.typed" from "py.typed"];
/// The contract, for the tools that build components.
const WIT: [TemplateFile; 7] = files!["wit": "oarlock/wit/action.wit" from "action/action.wit",
    "oarlock/wit/handler.wit" from "action/handler.wit", "oarlock/wit/deps/host/package.wit" from "host/package.wit",
    "oarlock/wit/deps/host/cluster.wit" from "host/cluster.wit", "oarlock/wit/deps/host/config.wit" from "host/config.wit",
    "oarlock/wit/deps/host/jobs.wit" from "host/jobs.wit", "oarlock/wit/deps/host/log.wit" from "host/log.wit"];

impl Language {
    /// Returns the files with the example's names, which the command replaces.
    pub(super) fn example(self) -> &'static [TemplateFile] {
        match self {
            Self::Rust => &RUST,
            Self::JavaScript => &JAVASCRIPT,
            Self::TypeScript => &TYPESCRIPT,
            Self::Python => &PYTHON,
        }
    }

    /// Returns the SDK and the contract, which the command copies as they are. The crate of a Rust plugin names its SDK instead.
    pub(super) fn sdk(self) -> Vec<TemplateFile> {
        match self {
            Self::Rust => Vec::new(),
            Self::JavaScript | Self::TypeScript => JAVASCRIPT_SDK.into_iter().chain(WIT).collect(),
            Self::Python => PYTHON_SDK.into_iter().chain(WIT).collect(),
        }
    }

    /// Returns true if the language has a runtime that imports files and sockets, although the plugin needs none.
    pub(super) fn has_runtime(self) -> bool {
        self != Self::Rust
    }

    /// Returns the names that git ignores.
    pub(super) fn ignored(self) -> &'static str {
        match self {
            Self::Rust => "/target\n/*.wasm\n/dev.kubeconfig\n",
            Self::JavaScript => "/node_modules\n/*.wasm\n/dev.kubeconfig\n",
            Self::TypeScript => "/node_modules\n/build\n/*.wasm\n/dev.kubeconfig\n",
            Self::Python => "/.venv\n__pycache__\n.pytest_cache\n.mypy_cache\n/*.wasm\n/dev.kubeconfig\n",
        }
    }

    /// Returns the file with the author's code.
    pub(super) fn source(self) -> &'static str {
        match self {
            Self::Rust => "src/lib.rs",
            Self::JavaScript => "plugin.js",
            Self::TypeScript => "plugin.ts",
            Self::Python => "plugin.py",
        }
    }

    /// Returns the command that runs the tests of the plugin.
    pub(super) fn test(self) -> &'static str {
        match self {
            Self::Rust => "cargo test",
            Self::JavaScript => "node --test",
            Self::TypeScript => "npm test",
            Self::Python => ".venv/bin/python -m pytest",
        }
    }
}
