//! The commands of this repository.
//!
//! The program runs cargo, rustup and the built binaries, and ends with their exit code. This crate knows the order of
//! steps, but nothing about their content.

mod architecture;
mod arguments;
mod bench;
mod binaries;
mod book;
mod browser;
mod chart;
mod checks;
mod cluster;
mod demo;
mod image;
mod languages;
mod nodes;
mod phases;
mod plugins;
mod python;
mod release;
mod release_checks;
mod rest;
mod sbom;
mod suite;
mod workspace;

use std::process::ExitCode;

use clap::Parser as _;

use crate::arguments::{Arguments, Command, Tests};

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Demo { arguments } => demo::run(&arguments),
        Command::Test { what: Some(Tests::Release), earlier, steps } => release_checks::run(&steps, earlier.as_deref()),
        Command::Test { earlier: Some(_), .. } => Err(anyhow::anyhow!("--earlier is only for `test release`")),
        Command::Test { steps, .. } if !steps.is_empty() => Err(anyhow::anyhow!("--step is only for `test release`")),
        Command::Test { what: None, .. } => suite::run(),
        Command::Test { what: Some(Tests::Nodes), .. } => nodes::run(),
        Command::Test { what: Some(Tests::Rest), .. } => rest::run(),
        Command::Soak => suite::soak(),
        Command::Bench(what) => bench::run(&what),
        Command::Book => book::build(),
        Command::Cluster(asked) => cluster::run(&asked),
        Command::Chart => chart::write(),
        Command::Image { arch } => image::build(arch),
        Command::Release { arch } => release::build(&arch),
        Command::Lint => checks::lint(),
        Command::Plugins => plugins::build(),
    };
    match outcome {
        Ok(code) => code,
        Err(cause) => {
            eprintln!("xtask: {cause:#}");
            ExitCode::FAILURE
        }
    }
}
