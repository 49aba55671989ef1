//! The command line of the benches.
//!
//! Takes the arguments of the process; yields what to measure. `cargo xtask bench` hands its own on to here.

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
    /// JobFlows and DaemonJobs beside a bare client that makes the same creates
    Flows(Flows),
    /// The admission policies of pods: what they cost whoever writes a pod
    Policies(Policies),
    /// The logs of a workload: how fast a host collects them, and in what memory
    Logs(LogsBench),
    /// The REST API of OpsJobs: creates, and reads beside clients that mean no good
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

/// What to do to the host, how often.
#[derive(Args, Clone, Debug)]
pub(crate) struct Operations {
    /// What happens
    #[arg(long, value_enum, default_value = "replace")]
    pub(crate) scenario: Scenario,
    /// How targets are replaced; `steady`, `idle` and `deadline` take one mode where both are not asked for, `beside-bare` has CollaSet's
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Modes>,
    /// How many targets, pods or nodes; where this is not given, 100 and then 1,000 for `replace` and `reboots`, 100 for `deadline`, 300 for `neighbours`,
    /// 10,000 for `crowd` and `restart`, 5,000 for `ops-jobs`, else 1,000
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) targets: Option<u32>,
    /// How often; where this is not given, 10 for `outage`, 3 for `beside-bare`, 3 for `replace`, `crowd`, `rolling` and `kills` up to
    /// 1,000 targets, else 1
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// What fails in `outage`; everything, one after the other, where this is not given
    #[arg(long, value_enum)]
    pub(crate) failure: Option<Failure>,
    /// What the other plugin does in `neighbours`, such as `huge-output-in-operate`; all, one after the other, where this is not given
    #[arg(long)]
    pub(crate) misdeed: Option<String>,
    /// How many nodes `reboots` and `checks` work on at once; a tenth of them where this is not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) parallelism: Option<u32>,
    /// How long the host lives in `kills`, and in the second run of `reboots` and `checks`
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) kill_every: u32,
    /// Which cluster; `replace`, `beside-bare`, `neighbours`, `rolling`, `crowd`, `kills`, `restart`, `reboots` and `checks` run on both
    #[arg(long, value_enum, default_value = "real")]
    pub(crate) on: On,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// What all benches take.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Folder of the built components
    #[arg(long, value_name = "DIR")]
    pub(crate) plugins_from: Option<PathBuf>,
    /// Writes the figures there too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// What happens while the host is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// One job replaces all targets, beside a bare client that makes the same writes
    Replace,
    /// The same in CollaSet mode, where each has a control plane of its own and pods of 8 KB: what either costs the API server
    BesideBare,
    /// Ten jobs of one target a second for a minute: how long from a change to the write that it calls for
    Steady,
    /// 200 jobs have ended and 50 pods change a second for a minute: what it costs to have nothing to do
    Idle,
    /// Jobs whose targets never come to their end, with a deadline of 5 s: how late each ends
    Deadline,
    /// The API server or its store fails in the middle of a job: how long it takes, and whether anything goes wrong
    Outage,
    /// One job beside a plugin that misbehaves, in each of eleven ways, or does not: what it loses by that
    Neighbours,
    /// One job replaces all targets, a tenth of them at once: its time to the least that this world allows
    Rolling,
    /// A hundred jobs replace all targets at once, beside a bare client: whether one of them comes too short
    Crowd,
    /// One job whose host is killed again and again, and one whose host is not: what that costs, and what goes wrong
    Kills,
    /// One job whose host is killed and started again three times: how long until it acts
    Restart,
    /// One job reboots all nodes, a tenth of them at once, each away for two to four seconds: its time to the least that is
    /// possible, how many are out of service, and what goes wrong; then the same with a host that is killed again and again
    Reboots,
    /// An OpsJob for all nodes, and one for every fifth of them that stays in work: how long until its OperationJob is there, and how
    /// long and how large a host is that is killed and started again
    OpsJobs,
    /// An OpsJob runs a script of a second on each node, twenty of them at once: its time to the least that is possible
    Addons,
    /// One job runs a check of a second on each node, a tenth of them at once, and every tenth check fails: its time to the least
    /// that is possible, how many run, and what goes wrong; then the same with a host that is killed again and again
    Checks,
}

/// What fails in the middle of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Failure {
    /// The API server is killed and restarted, twice
    ApiServerKilled,
    /// The store is killed and restarted
    StoreKilled,
    /// The API server stands still for 8 s
    ApiServerFrozen,
}

/// How targets are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Evict and wait for the controller
    Evict,
    /// The CollaSet's protocol
    #[value(name = "collaset")]
    CollaSet,
}

/// One way of replacing targets, or each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Modes {
    /// Evict and wait for the controller
    Evict,
    /// The CollaSet's protocol
    #[value(name = "collaset")]
    CollaSet,
    /// One after the other
    Both,
}

/// What stands for the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum On {
    /// The in-memory API, on a port; without ratios
    Sim,
    /// etcd and kube-apiserver
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
    /// The modes to run, where `otherwise` is what the scenario takes when none is asked for.
    pub(crate) fn modes(&self, otherwise: Modes) -> Vec<Mode> {
        match self.mode.unwrap_or(otherwise) {
            Modes::Evict => vec![Mode::Evict],
            Modes::CollaSet => vec![Mode::CollaSet],
            Modes::Both => vec![Mode::Evict, Mode::CollaSet],
        }
    }

    /// The failures to let happen.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        self.failure.map_or_else(|| Failure::value_variants().to_vec(), |failure| vec![failure])
    }

    /// How many targets, where `otherwise` is what the scenario takes when no number is asked for.
    pub(crate) fn targets(&self, otherwise: usize) -> usize {
        self.targets.and_then(|count| usize::try_from(count).ok()).unwrap_or(otherwise)
    }

    /// How many rounds of a scenario that takes three with up to 1,000 targets and one with more, where no number is asked for.
    pub(crate) fn rounds_of(&self, targets: usize) -> u32 {
        self.rounds(if targets > 1000 { 1 } else { 3 })
    }

    /// How many rounds, where `otherwise` is what the scenario takes when no number is asked for.
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
