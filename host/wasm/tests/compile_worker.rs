//! The helper process that compiles, as a program of its own: this one, called again by itself.
//!
//! It has no test harness, because a helper writes code and nothing else to standard output.

use std::error::Error;
use std::process::ExitCode;

use oarlock_core::plugin::grant::Grant;
use oarlock_wasm::{CompileWith, Options, PluginState, PluginStatus, Plugins, compile_worker, inspect};

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("compile-worker") {
        return match compile_worker() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    match what_a_helper_compiled_serves() {
        Ok(status) if status.state == PluginState::Serving => {
            println!("test what_a_helper_compiled_serves ... ok");
            ExitCode::SUCCESS
        }
        Ok(status) => failed(&format!("{status:?}")),
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("test what_a_helper_compiled_serves ... FAILED: {why}");
    ExitCode::FAILURE
}

#[path = "plugins/folder.rs"]
mod folder;

fn what_a_helper_compiled_serves() -> Result<PluginStatus, Box<dyn Error>> {
    let bytes = folder::component("replace")?;
    let manifest = inspect(&bytes)?.manifest.ok_or("it has no manifest")?;
    let grant = Grant {
        name: manifest.name,
        any_version: true,
        namespaces: vec!["*".into()],
        reads: manifest.reads,
        writes: manifest.writes,
        ..Grant::default()
    };
    let program = std::env::current_exe()?;
    let compile_with = CompileWith::Helper { program, arguments: vec!["compile-worker".into()] };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let plugins = Plugins::start(Options { compile_with, ..Options::in_memory() }).await?;
        plugins.set_grants(vec![grant]).await;
        Ok(plugins.publish("replace", bytes).await.ok_or("it is not listed")?)
    })
}
