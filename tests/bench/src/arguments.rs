//! The command line of the benches. `cargo xtask bench` passes its arguments on to it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::flows::arguments::Flows;
use crate::logs::LogsBench;
use crate::policies::Policies;
use crate::rest::RestBench;

/// Measures the host.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) what: What,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Calls of a plugin: fresh and warm instances, small and large pods
    Plugins {
        #[command(flatten)]
        common: Common,
    },
    /// A host process at work, in one of several scenarios
    Operations(Operations),
    /// JobFlows and DaemonJobs, beside a bare client that makes the same creates
    Flows(Flows),
    /// The admission policies of pods: their cost for every write of a pod
    Policies(Policies),
    /// The logs of a workload: how fast a host collects them, and with how much memory
    Logs(LogsBench),
    /// The REST API of OpsJobs: creates, and reads beside hostile clients
    Rest(RestBench),
    /// The bare client that `flows` starts
    #[command(hide = true)]
    BareFlows {
        #[arg(long)]
        kubeconfig: PathBuf,
        #[arg(long)]
        namespace: String,
        #[arg(long)]
        file: PathBuf,
    },
    /// The bare client that `operations` starts
    #[command(hide = true)]
    Bare {
        #[arg(long)]
        kubeconfig: PathBuf,
        #[arg(long)]
        namespace: String,
        #[arg(long, value_enum)]
        mode: Mode,
    },
}

/// The options of the `operations` bench.
#[derive(Args, Clone, Debug)]
pub(crate) struct Operations {
    /// The scenario to run
    #[arg(long, value_enum, default_value = "replace")]
    pub(crate) scenario: Scenario,
    /// How targets are replaced; `steady`, `idle`, `deadline`, `neighbours` and `rolling` run one mode by default, `beside-bare`
    /// always runs CollaSet mode
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Modes>,
    /// Number of targets, pods or nodes (default: 100 and then 1,000 for `replace` and `reboots`, 100 for `deadline`, 300 for
    /// `neighbours`, 10,000 for `crowd` and `restart`, 5,000 for `ops-jobs`, else 1,000)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) targets: Option<u32>,
    /// Number of rounds (default: 10 for `outage`, 3 for `beside-bare`, 3 for `replace`, `crowd`, `rolling` and `kills` up to 1,000
    /// targets, else 1)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// The failure in `outage` (default: all, one after the other)
    #[arg(long, value_enum)]
    pub(crate) failure: Option<Failure>,
    /// The misdeed of the other plugin in `neighbours`, such as `huge-output-in-operate` (default: all, one after the other)
    #[arg(long)]
    pub(crate) misdeed: Option<String>,
    /// How many nodes `reboots` and `checks` work on at once (default: a tenth of them)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) parallelism: Option<u32>,
    /// How long the host lives in `kills`, and in the second run of `reboots` and `checks`
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) kill_every: u32,
    /// The cluster; `replace`, `beside-bare`, `neighbours`, `rolling`, `crowd`, `kills`, `restart`, `reboots` and `checks` run on
    /// both
    #[arg(long, value_enum, default_value = "real")]
    pub(crate) on: On,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The options of all benches.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Folder of the built components
    #[arg(long, value_name = "DIR")]
    pub(crate) plugins_from: Option<PathBuf>,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// A scenario: the work of the host while it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// One job replaces all targets, beside a bare client that makes the same writes
    Replace,
    /// Like `replace` in CollaSet mode, but each contender has its own control plane and pods of 8 KB: what each costs the API
    /// server
    BesideBare,
    /// Ten jobs of one target a second for a minute: the time from a change to the write that it calls for
    Steady,
    /// 200 jobs have ended and 50 pods change a second for a minute: the cost of a host with nothing to do
    Idle,
    /// Jobs whose targets never end, with a deadline of 5 s: how late each job ends
    Deadline,
    /// The API server or its store fails during a job: how long the job takes, and whether anything goes wrong
    Outage,
    /// One job beside a plugin that misbehaves in each of eleven ways, or not at all: what the job loses
    Neighbours,
    /// One job replaces all targets, a tenth of them at once: its time beside the shortest possible time
    Rolling,
    /// A hundred jobs replace all targets at once, beside a bare client: whether one of the jobs starves
    Crowd,
    /// One job whose host is killed again and again, and one whose host is not: the cost of the kills, and what goes wrong
    Kills,
    /// One job whose host is killed and restarted three times: how long the host takes to act again
    Restart,
    /// One job reboots all nodes, a tenth at once, each for two to four seconds. Measures its time, nodes out of service and
    /// errors, first with a host that is left alone, then with one that is killed again and again
    Reboots,
    /// An OpsJob for all nodes, and live OpsJobs for a fifth of the nodes: the time until the OperationJob exists, and the restart
    /// time and memory of a host that is killed
    OpsJobs,
    /// An OpsJob runs a script of a second on each node, twenty of them at once: its time beside the shortest possible time
    Addons,
    /// One job checks each node for a second, a tenth at once, and every tenth check fails. Measures its time, running checks and
    /// errors, first with a host that is left alone, then with one that is killed again and again
    Checks,
}

/// A failure in the middle of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Failure {
    /// The API server is killed and restarted, twice
    ApiServerKilled,
    /// The store is killed and restarted
    StoreKilled,
    /// The API server is frozen for 8 s
    ApiServerFrozen,
}

/// A way to replace targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Evict and wait for the controller
    Evict,
    /// The CollaSet's protocol
    #[value(name = "collaset")]
    CollaSet,
}

/// One way to replace targets, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Modes {
    /// Evict and wait for the controller
    Evict,
    /// The CollaSet's protocol
    #[value(name = "collaset")]
    CollaSet,
    /// Both modes, one after the other
    Both,
}

/// The kind of cluster to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum On {
    /// The in-memory API, on a port; without ratios
    Sim,
    /// A real etcd and kube-apiserver
    Real,
}

impl Scenario {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Replace => "replace",
            Self::BesideBare => "beside-bare",
            Self::Steady => "steady",
            Self::Idle => "idle",
            Self::Deadline => "deadline",
            Self::Outage => "outage",
            Self::Neighbours => "neighbours",
            Self::Rolling => "rolling",
            Self::Crowd => "crowd",
            Self::Kills => "kills",
            Self::Restart => "restart",
            Self::Reboots => "reboots",
            Self::Checks => "checks",
            Self::OpsJobs => "ops-jobs",
            Self::Addons => "addons",
        }
    }
}

impl Failure {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::ApiServerKilled => "api-server-killed",
            Self::StoreKilled => "store-killed",
            Self::ApiServerFrozen => "api-server-frozen",
        }
    }
}

impl Mode {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Evict => "evict",
            Self::CollaSet => "collaset",
        }
    }
}

impl On {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Real => "real",
        }
    }
}

impl Operations {
    /// Returns the modes to run. `otherwise` is the default of the scenario.
    pub(crate) fn modes(&self, otherwise: Modes) -> Vec<Mode> {
        match self.mode.unwrap_or(otherwise) {
            Modes::Evict => vec![Mode::Evict],
            Modes::CollaSet => vec![Mode::CollaSet],
            Modes::Both => vec![Mode::Evict, Mode::CollaSet],
        }
    }

    /// Returns the failures to run.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        self.failure.map_or_else(|| Failure::value_variants().to_vec(), |failure| vec![failure])
    }

    /// Returns the number of targets. `otherwise` is the default of the scenario.
    pub(crate) fn targets(&self, otherwise: usize) -> usize {
        self.targets.and_then(|count| usize::try_from(count).ok()).unwrap_or(otherwise)
    }

    /// Returns the number of rounds of a scenario whose default is three with up to 1,000 targets and one with more.
    pub(crate) fn rounds_of(&self, targets: usize) -> u32 {
        self.rounds(if targets > 1000 { 1 } else { 3 })
    }

    /// Returns the number of rounds. `otherwise` is the default of the scenario.
    pub(crate) fn rounds(&self, otherwise: u32) -> u32 {
        self.rounds.unwrap_or(otherwise)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn scenarios_and_modes_are_called_as_their_words_say() {
        for scenario in Scenario::value_variants() {
            assert_eq!(scenario.to_possible_value().unwrap().get_name(), scenario.word());
        }
        for failure in Failure::value_variants() {
            assert_eq!(failure.to_possible_value().unwrap().get_name(), failure.word());
        }
        for mode in Mode::value_variants() {
            assert_eq!(mode.to_possible_value().unwrap().get_name(), mode.word());
        }
    }
}
