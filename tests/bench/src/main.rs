//! The benches: `cargo xtask bench` builds this optimised and runs it. Prints figures and ratios; judges nothing.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};

mod ground;
mod operations;
mod plugins;
mod process;
mod table;

/// Measures the host.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Calls of a plugin: fresh and warm instances, small and large pods
    Plugins {
        #[command(flatten)]
        common: Common,
    },
    /// Many targets replaced by a host process, beside a bare client that makes the same writes
    Operations {
        /// How many targets; 100 and then 1,000 where this is not given
        #[arg(long)]
        targets: Option<usize>,
        /// Which cluster
        #[arg(long, value_enum, default_value = "real")]
        on: On,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Folder of the built components
    #[arg(long, value_name = "DIR")]
    plugins_from: Option<PathBuf>,
    /// Writes the figures there too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum On {
    /// The in-memory API, on a port
    Sim,
    /// etcd and kube-apiserver
    Real,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (figures, json) = match arguments.what {
        What::Plugins { common } => {
            let components = common.plugins_from.unwrap_or_else(components);
            let figures = runtime.block_on(plugins::run(&components))?;
            println!("{}", table::plugins(&figures));
            (figures, common.json)
        }
        What::Operations { targets, on, common } => {
            let components = common.plugins_from.unwrap_or_else(components);
            let mut runs = Vec::new();
            for count in targets.map_or_else(|| vec![100, 1000], |count| vec![count]) {
                let figures = runtime.block_on(operations::run(count, matches!(on, On::Real), &components))?;
                println!("{}", table::operations(&figures));
                runs.push(figures);
            }
            (serde_json::Value::Array(runs), common.json)
        }
    };
    if let Some(file) = json {
        std::fs::write(&file, serde_json::to_string_pretty(&figures)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Where `cargo xtask plugins` leaves components.
fn components() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from).join("wasm32-wasip2/release")
}
