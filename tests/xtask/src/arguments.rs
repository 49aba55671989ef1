//! The command line.
//!
//! This module parses the arguments of the process into one command. The help texts are here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::architecture::Architecture;

/// The commands of this repository, exactly as CI calls them
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands, each with one line of help.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build host and plugin, and watch pods being replaced on an in-memory cluster
    Demo {
        /// Arguments of the demo, such as `pods` or --fast
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run every test: unit, scenarios, the real control plane, conformance, lint; or only the tests that need real
    /// nodes or Python
    Test {
        /// Tests to run instead of all others
        #[arg(value_enum)]
        what: Option<Tests>,
        /// For `release`: commit of the earlier release; by default the last release tag, or the first commit with a chart
        #[arg(long, value_name = "REVISION")]
        earlier: Option<String>,
        /// For `release`: a step to run instead of all; can be repeated
        #[arg(long = "step", value_enum)]
        steps: Vec<ReleaseStep>,
    },
    /// Run in full the tests that a test run only samples: the model, crash sweeps, schedules, plans, known-bad hosts
    Soak,
    /// Measure, and print figures and ratios
    Bench(Bench),
    /// Build the documentation as a book into target/book/html; the first call builds mdBook
    Book,
    /// Run a real cluster on this machine, with kubelets and containers: on Linux, as root or by sudo
    #[command(subcommand)]
    Cluster(Cluster),
    /// Write the Helm chart and the kustomize base in deploy/ from the documents of `oarlock manifests`
    Chart,
    /// Build a static image of the host into target/images, without Docker
    #[command(after_help = TOOLS)]
    Image {
        /// Architecture of the image; by default that of this machine, in oarlock.tar
        #[arg(long, value_enum)]
        arch: Option<Architecture>,
    },
    /// Check formatting and run clippy on all crates
    Lint,
    /// Make a release in target/release-VERSION: binaries, image, chart, definitions, plugins, bill of materials, checksums
    #[command(after_help = TOOLS)]
    Release {
        /// Architecture of a binary and an image; can be repeated
        #[arg(long, value_enum, default_values = ["amd64", "arm64"])]
        arch: Vec<Architecture>,
    },
    /// Build the WebAssembly components into target/wasm32-wasip2/release
    Plugins,
}

/// Tests that `cargo xtask test` runs only on request.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Tests {
    /// Scenarios on real nodes, with kubelets and containers: on Linux, as root
    Nodes,
    /// The REST API: ten thousand cases from its OpenAPI document, and its page in a browser; needs Python and Chromium
    Rest,
    /// Checks of a release that take hours: two image builds, and an earlier release before and after this one; as root
    Release,
}

/// A step of `cargo xtask test release`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReleaseStep {
    /// Two builds of the image in two folders have one digest, and the image is small enough
    Image,
    /// The earlier release goes on with the jobs that this one has stored, and this one with those of the earlier release
    Stored,
    /// Helm upgrades the earlier chart to this one, and goes back, on an API server without nodes
    Chart,
    /// Helm does the same on real nodes, with jobs in flight and an upgrade that is killed; needs root
    Nodes,
}

/// Commands for the cluster of this user.
#[derive(Debug, Subcommand)]
#[command(after_help = CLUSTER)]
pub(crate) enum Cluster {
    /// Start the cluster, and wait until its nodes are Ready
    Up {
        /// Number of nodes
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=9))]
        nodes: u8,
        /// An image archive that each node imports, in the format of `docker save`; can be repeated
        #[arg(long = "image", value_name = "FILE")]
        images: Vec<PathBuf>,
    },
    /// Show the nodes of the cluster
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the path of the cluster's kubeconfig
    Kubeconfig,
    /// Cut the power of a node, or start it again
    Node {
        /// The order for the node
        #[arg(value_enum)]
        order: NodeOrder,
        /// Name of the node, such as node-1
        name: String,
    },
    /// End the cluster, and remove its files and control groups
    Down,
    /// Build the programs of the nodes, which takes about ten minutes the first time; `up` also builds missing programs
    Build,
}

const TOOLS: &str = "\
Packages of Debian:
  for this machine's architecture    gcc, musl-dev
  for arm64 on amd64                 gcc-aarch64-linux-gnu, musl-dev:arm64 (first `dpkg --add-architecture arm64 && apt-get update`)
  for amd64 on arm64                 gcc-x86-64-linux-gnu, musl-dev:amd64 (first `dpkg --add-architecture amd64 && apt-get update`)";

const CLUSTER: &str = "\
Examples:
  cargo xtask cluster up --nodes 3
  docker save my-image > my-image.tar && cargo xtask cluster up --image my-image.tar
  export KUBECONFIG=$(cargo xtask cluster kubeconfig) && kubectl get nodes
  cargo xtask cluster node kill node-2
  cargo xtask cluster down

A node has folders, processes, addresses and control groups of its own; the rest of its files are the machine's, so who is root on a node is\nroot on the machine. Its folder is /var/tmp/oarlock-cluster-UID, or that of the variable OARLOCK_CLUSTER.";

/// An order for a node.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum NodeOrder {
    /// Cut the power of the node
    Kill,
    /// Start the node
    Boot,
}

/// The subject and the options of a bench.
#[derive(Args, Debug)]
#[command(after_long_help = BENCH)]
pub(crate) struct Bench {
    /// The subject of the measurement
    #[arg(value_enum)]
    pub(crate) subject: Subject,
    /// Scenario of the host; this option and all below are only for `operations`, except --rounds, --on, --json and the
    /// options for `flows`
    #[arg(long, value_enum)]
    pub(crate) scenario: Option<Scenario>,
    /// Way in which targets are replaced; each scenario has its own default
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Modes>,
    /// Number of targets, pods or nodes; by default 100 and then 1,000 for `replace` and `reboots`, 100 for `deadline`,
    /// 300 for `neighbours`, 10,000 for `crowd` and `restart`, else 1,000
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) targets: Option<u32>,
    /// Number of rounds; by default 10 for `outage`, 3 for `beside-bare`, 3 for `replace`, `crowd`, `rolling` and
    /// `kills` up to 1,000 targets, else 1
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// The failure in `outage`; by default every failure, one after the other
    #[arg(long, value_enum)]
    pub(crate) failure: Option<Failure>,
    /// Number of nodes that `reboots` and `checks` work on at once; by default a tenth of the nodes
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) parallelism: Option<u32>,
    /// Seconds that the host lives in `kills`, and in the second run of `reboots` and `checks`; by default 2
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) kill_every: Option<u32>,
    /// The API server for operations; `replace`, `beside-bare`, `neighbours`, `rolling`, `crowd`, `kills`, `restart`,
    /// `reboots` and `checks` run on both
    #[arg(long, value_enum)]
    pub(crate) on: Option<Ground>,
    /// Measurements of `flows`; by default all of them, one after the other
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) measure: Vec<Measure>,
    /// For `flows`: number of nodes of the DaemonJob; by default 1,000
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) nodes: Option<u32>,
    /// For `flows`: number of nodes of the large DaemonJob; by default 5,000
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) large: Option<u32>,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

const BENCH: &str = "\
Examples:
  cargo xtask bench plugins
  cargo xtask bench operations                                    host and bare client, 100 and 1,000 targets, both modes
  cargo xtask bench operations --targets 10000 --mode collaset    one round
  cargo xtask bench operations --scenario beside-bare             CPU of the API server, host and bare client on fresh servers each
  cargo xtask bench operations --scenario steady                  from a change to the write that it calls for
  cargo xtask bench operations --scenario rolling                 maxUnavailable: 10%, beside the least time that is possible
  cargo xtask bench operations --scenario kills --mode evict      SIGKILL every two seconds, beside a host that is left alone
  cargo xtask bench operations --scenario reboots                 100 and 1,000 nodes, a tenth at once, with and without kills
  cargo xtask bench operations --scenario checks --targets 100    a check of a second on each of 100 nodes
  cargo xtask bench operations --scenario ops-jobs                OpsJobs: 5,000 nodes, and 1,000 jobs in work over a restart
  cargo xtask bench operations --scenario addons --on sim         a script of a second on each of 1,000 nodes, twenty at once
  cargo xtask bench operations --scenario crowd --on sim          a hundred jobs of a hundred targets, on the in-memory API
  cargo xtask bench flows                                         JobFlows and DaemonJobs beside a bare client, their goals beside them
  cargo xtask bench flows --measure daemon,large --rounds 1       1,000 nodes, and 5,000 beside them
  cargo xtask bench policies --rounds 9                           CPU of the API server per pod write, without and with them
  cargo xtask bench logs                                          1 GB of logs of 20 pods, beside a client that reads and drops them
  cargo xtask bench rest                                          creates and reads by REST, beside slow, flooding and idle clients
  cargo xtask bench operations --scenario outage --failure api-server-killed --mode evict --rounds 3

Figures are printed, some beside their goals, and never judged. What each means is said below its table. Nothing else should run meanwhile.";

/// The subjects of benches.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Subject {
    /// Calls of a plugin: fresh and warm, small and large pods
    Plugins,
    /// A host process at work, in one of several scenarios
    Operations,
    /// JobFlows and DaemonJobs, beside a bare client that makes the same creates
    Flows,
    /// The admission policies of pods: their cost for a client that writes a pod
    Policies,
    /// The logs of a workload: speed and memory of a host that collects them
    Logs,
    /// The REST API of OpsJobs: creates, and reads beside slow, flooding and idle clients
    Rest,
}

/// A measurement of JobFlows and DaemonJobs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Measure {
    /// CPU of one plan at 200 and at 5,000 units, without a cluster
    Plans,
    /// A DaemonJob on 1,000 nodes
    Daemon,
    /// A flow of 200 steps, 199 of them roots
    Wide,
    /// 50 flows of ten sequential steps
    Crowd,
    /// Four flows of 25 sequential steps: time from a decision to the create that follows
    Chain,
    /// A DaemonJob on 5,000 nodes, beside the smaller DaemonJob; then memory, and the cost of heartbeats
    Large,
}

/// A scenario of the host during a measurement.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Scenario {
    /// One job replaces all targets, beside a bare client that makes the same writes
    Replace,
    /// As `replace`, in CollaSet mode with pods of 8 KB, host and bare client on control planes of their own: cost of
    /// each for the API server
    BesideBare,
    /// Ten jobs of one target a second for a minute: time from a change to the write that follows
    Steady,
    /// 200 ended jobs, and changes of 50 pods a second for a minute: cost of a host without work
    Idle,
    /// Jobs whose targets never end, with a deadline of 5 s: delay of each end
    Deadline,
    /// A failure of the API server or its store in the middle of a job: time of the job, and number of faults
    Outage,
    /// One job beside a plugin that misbehaves in each of eleven ways, or does not: slowdown of the job
    Neighbours,
    /// One job replaces all targets, a tenth of them at once: ratio of its time to the shortest possible time
    Rolling,
    /// A hundred jobs replace all targets at once, beside a bare client: fairness among the jobs
    Crowd,
    /// One job whose host is killed repeatedly, and one whose host is not: cost of the kills, and number of faults
    Kills,
    /// One job whose host is killed and restarted three times: time until the host acts
    Restart,
    /// One job reboots all nodes, a tenth of them at once, with and without kills: ratio of its time to the shortest
    /// possible time, nodes out of service, and faults
    Reboots,
    /// One job checks all nodes, a tenth of them at once, with and without kills: ratio of its time to the shortest
    /// possible time, running checks, and faults
    Checks,
    /// OpsJobs: one for all nodes, and one for every fifth node, which keep running while the host restarts
    OpsJobs,
    /// An OpsJob runs a script of a second on each node, twenty at once: ratio of its time to the shortest possible
    /// time
    Addons,
}

/// A way to replace targets.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Modes {
    /// Evict the pod and wait for the controller
    Evict,
    /// The protocol of the CollaSet
    #[value(name = "collaset")]
    CollaSet,
    /// Both ways, one after the other
    Both,
}

/// A failure in the middle of a job.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Failure {
    /// The API server is killed and restarted, twice
    ApiServerKilled,
    /// The store is killed and restarted
    StoreKilled,
    /// The API server is stopped for 8 s
    ApiServerFrozen,
}

/// An API server for benches.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Ground {
    /// The in-memory API; prints no ratios
    Sim,
    /// etcd and kube-apiserver
    Real,
}

impl Bench {
    /// Returns the arguments for the bench program.
    pub(crate) fn handed_on(&self) -> Vec<String> {
        let mut words = vec![word(&self.subject)];
        let mut option =
            |name: &str, value: Option<String>| words.extend(value.map(|value| format!("--{name}={value}")));
        option("scenario", self.scenario.as_ref().map(word));
        option("mode", self.mode.as_ref().map(word));
        option("targets", self.targets.map(|count| count.to_string()));
        option("rounds", self.rounds.map(|count| count.to_string()));
        option("failure", self.failure.as_ref().map(word));
        option("parallelism", self.parallelism.map(|count| count.to_string()));
        option("kill-every", self.kill_every.map(|seconds| seconds.to_string()));
        let measures: Vec<String> = self.measure.iter().map(word).collect();
        option("measure", Some(measures.join(",")).filter(|all| !all.is_empty()));
        option("nodes", self.nodes.map(|count| count.to_string()));
        option("large", self.large.map(|count| count.to_string()));
        option("on", self.on.as_ref().map(word));
        words
    }
}

/// Returns the word for a value on a command line.
pub(crate) fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |possible| possible.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::{Arguments, Command};

    #[test]
    fn command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn bench_is_called_with_what_was_asked_for() {
        let asked = "xtask bench operations --scenario outage --mode collaset --rounds 3 --failure store-killed";
        let Command::Bench(bench) = Arguments::parse_from(asked.split(' ')).command else { panic!("no bench") };
        let handed_on = bench.handed_on();
        assert_eq!(
            handed_on,
            ["operations", "--scenario=outage", "--mode=collaset", "--rounds=3", "--failure=store-killed"]
        );
    }
}
