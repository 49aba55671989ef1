//! The command line of the bench of JobFlows and DaemonJobs.

use clap::{Args, ValueEnum};

use crate::arguments::{Common, On};

/// The options of the `flows` bench.
#[derive(Args, Clone, Debug)]
pub(crate) struct Flows {
    /// The measures to run (default: all, one after the other)
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) measure: Vec<Measure>,
    /// Nodes of the DaemonJob
    #[arg(long, default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) nodes: u32,
    /// Nodes of the large DaemonJob
    #[arg(long, default_value = "5000", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) large: u32,
    /// Steps of the wide flow
    #[arg(long, default_value = "200", value_parser = clap::value_parser!(u32).range(2..=500))]
    pub(crate) steps: u32,
    /// Number of flows of ten steps that run at once
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) flows: u32,
    /// Number of rounds; the large DaemonJob runs once
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// How long the nodes of the large DaemonJob send heartbeats after its end
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) heartbeats: u32,
    /// The cluster
    #[arg(long, value_enum, default_value = "real")]
    pub(crate) on: On,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A measure of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// CPU of one plan, and of a plan with its status, for a wide flow and for the large DaemonJob; without a cluster
    Plans,
    /// A DaemonJob on `--nodes` nodes, beside a bare client
    Daemon,
    /// A flow in which all steps but the last are roots, beside a bare client
    Wide,
    /// Many flows of ten steps in a chain, all at once, beside a bare client
    Crowd,
    /// Four flows of 25 steps in a chain: the time from a decision to the create that it calls for, on a calm cluster
    Chain,
    /// A DaemonJob on `--large` nodes, beside the one on `--nodes`; then memory, and the cost of its nodes' heartbeats
    Large,
}

impl Flows {
    /// Returns the measures to run.
    pub(crate) fn measures(&self) -> Vec<Measure> {
        if self.measure.is_empty() { Measure::value_variants().to_vec() } else { self.measure.clone() }
    }
}
