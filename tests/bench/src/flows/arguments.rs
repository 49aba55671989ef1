//! The command line of the bench of JobFlows and DaemonJobs.

use clap::{Args, ValueEnum};

use crate::arguments::{Common, On};

/// What is measured of JobFlows and DaemonJobs, and how large it is.
#[derive(Args, Clone, Debug)]
pub(crate) struct Flows {
    /// What is measured; everything, one after the other, where this is not given
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
    /// Flows of ten steps at once
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) flows: u32,
    /// How often; the large DaemonJob runs once
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// How long the nodes of the large DaemonJob send heartbeats once it has ended
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) heartbeats: u32,
    /// Which cluster
    #[arg(long, value_enum, default_value = "real")]
    pub(crate) on: On,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// CPU of one plan, and of a plan with its status, of a wide flow and of the large DaemonJob; without a cluster
    Plans,
    /// A DaemonJob on `--nodes` nodes, beside a bare client
    Daemon,
    /// A flow whose steps are all roots but the last, beside a bare client
    Wide,
    /// Flows of ten steps one after the other, all at once, beside a bare client
    Crowd,
    /// Four flows of 25 steps one after the other: from a decision to the create that it calls for, on a calm cluster
    Chain,
    /// A DaemonJob on `--large` nodes, beside the one on `--nodes`; then memory, and what heartbeats of its nodes cost
    Large,
}

impl Flows {
    /// What is measured.
    pub(crate) fn measures(&self) -> Vec<Measure> {
        if self.measure.is_empty() { Measure::value_variants().to_vec() } else { self.measure.clone() }
    }
}
