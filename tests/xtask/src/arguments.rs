//! The command line.
//!
//! Takes the arguments of the process; yields one command. Help texts live here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The commands of this repository; CI calls exactly these.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// One line of help each.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build host and plugin, and watch pods being replaced on an in-memory cluster
    Demo {
        /// Handed on to `oarlock demo`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run every test: unit, scenarios, the real control plane, conformance
    Test,
    /// Measure, and print figures and ratios
    Bench(Bench),
    /// Check formatting and run clippy on all crates
    Lint,
    /// Check licences and forbidden dependencies with cargo-deny
    Deny,
    /// Build the WebAssembly components into target/wasm32-wasip2/release
    Plugins,
}

/// What to measure, where.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// What to measure
    #[arg(value_enum)]
    pub(crate) subject: Subject,
    /// How many targets an operation has
    #[arg(long)]
    pub(crate) targets: Option<u32>,
    /// Which API server operations run on
    #[arg(long, value_enum)]
    pub(crate) on: Option<Ground>,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// The two benches.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Subject {
    /// Calls of a plugin: fresh and warm, small and large pods
    Plugins,
    /// Whole jobs, beside a bare client that makes the same writes
    Operations,
}

/// What stands for the cluster.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Ground {
    /// The in-memory API
    Sim,
    /// etcd and kube-apiserver
    Real,
}

impl Subject {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Plugins => "plugins",
            Self::Operations => "operations",
        }
    }
}

impl Ground {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Real => "real",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Arguments;

    #[test]
    fn command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
