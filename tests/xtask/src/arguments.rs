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
        /// Handed on to `oarlock demo`, such as `pods` or --fast
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run every test: unit, scenarios, the real control plane, conformance, lint; or what needs real nodes or Python
    Test {
        /// What to run in place of that
        #[arg(value_enum)]
        what: Option<Tests>,
    },
    /// Run the whole of what a test run shows a part of: the model, crash sweeps, schedules, plans, known-bad hosts
    Soak,
    /// Measure, and print figures and ratios
    Bench(Bench),
    /// Run a real cluster on this machine, with kubelets and containers: on Linux, as root or by sudo
    #[command(subcommand)]
    Cluster(Cluster),
    /// Build the image of the host, static and without Docker, into target/images/oarlock.tar
    Image,
    /// Check formatting and run clippy on all crates
    Lint,
    /// Build the WebAssembly components into target/wasm32-wasip2/release
    Plugins,
}

/// Tests that run by themselves.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Tests {
    /// Scenarios on real nodes, with kubelets and containers: on Linux, as root
    Nodes,
    /// The REST API: ten thousand cases from its OpenAPI document, and its page in a browser; needs Python and Chromium
    Rest,
}

/// What to do with the cluster of this user.
#[derive(Debug, Subcommand)]
#[command(after_help = CLUSTER)]
pub(crate) enum Cluster {
    /// Start it, and wait until its nodes are Ready
    Up {
        /// How many nodes
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=9))]
        nodes: u8,
        /// An archive that each node has the images of, as `docker save` writes it; can be repeated
        #[arg(long = "image", value_name = "FILE")]
        images: Vec<PathBuf>,
    },
    /// Show its nodes
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the path of its kubeconfig
    Kubeconfig,
    /// Take a node's power, or give it back
    Node {
        /// What becomes of it
        #[arg(value_enum)]
        order: NodeOrder,
        /// Its name, such as node-1
        name: String,
    },
    /// End it, and remove all that is left of it
    Down,
    /// Build the programs of its nodes, which takes about ten minutes the first time; `up` builds what is missing as well
    Build,
}

const CLUSTER: &str = "\
Examples:
  cargo xtask cluster up --nodes 3
  docker save my-image > my-image.tar && cargo xtask cluster up --image my-image.tar
  export KUBECONFIG=$(cargo xtask cluster kubeconfig) && kubectl get nodes
  cargo xtask cluster node kill node-2
  cargo xtask cluster down

A node has folders, processes, addresses and control groups of its own; the rest of its files are the machine's, so who is root on a node is\nroot on the machine. Its folder is /var/tmp/oarlock-cluster-UID, or that of the variable OARLOCK_CLUSTER.";

/// What becomes of a node.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum NodeOrder {
    /// It loses its power
    Kill,
    /// It starts
    Boot,
}

/// What to measure, where.
#[derive(Args, Debug)]
#[command(after_long_help = BENCH)]
pub(crate) struct Bench {
    /// What to measure
    #[arg(value_enum)]
    pub(crate) subject: Subject,
    /// What happens while the host is measured; only for `operations`, as everything below but --rounds, --on, --json and what is
    /// said to be for `flows`
    #[arg(long, value_enum)]
    pub(crate) scenario: Option<Scenario>,
    /// How targets are replaced; each scenario has its own default
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Modes>,
    /// How many targets, pods or nodes; by default 100 and then 1,000 for `replace` and `reboots`, 100 for `deadline`, 300 for
    /// `neighbours`, 10,000 for `crowd` and `restart`, else 1,000
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) targets: Option<u32>,
    /// How often; by default 10 for `outage`, 3 for `beside-bare`, 3 for `replace`, `crowd`, `rolling` and `kills` up to 1,000
    /// targets, else 1
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// What fails in `outage`; by default everything, one after the other
    #[arg(long, value_enum)]
    pub(crate) failure: Option<Failure>,
    /// How many nodes `reboots` and `checks` work on at once; by default a tenth of them
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) parallelism: Option<u32>,
    /// How many seconds the host lives in `kills`, and in the second run of `reboots` and `checks`; by default 2
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) kill_every: Option<u32>,
    /// Which API server operations run on; `replace`, `beside-bare`, `neighbours`, `rolling`, `crowd`, `kills`, `restart`,
    /// `reboots` and `checks` run on both
    #[arg(long, value_enum)]
    pub(crate) on: Option<Ground>,
    /// What `flows` measures; by default everything, one after the other
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) measure: Vec<Measure>,
    /// For `flows`: nodes of the DaemonJob; by default 1,000
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) nodes: Option<u32>,
    /// For `flows`: nodes of the large DaemonJob; by default 5,000
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

/// The benches.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Subject {
    /// Calls of a plugin: fresh and warm, small and large pods
    Plugins,
    /// A host process at work, in one of several scenarios
    Operations,
    /// JobFlows and DaemonJobs, beside a bare client that makes the same creates
    Flows,
    /// The admission policies of pods: what they cost whoever writes a pod
    Policies,
    /// The logs of a workload: how fast a host collects them, and in what memory
    Logs,
    /// The REST API of OpsJobs: creates, and reads beside clients that mean no good
    Rest,
}

/// What is measured of JobFlows and DaemonJobs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Measure {
    /// CPU of one plan at 200 and at 5,000 units, without a cluster
    Plans,
    /// A DaemonJob on 1,000 nodes
    Daemon,
    /// A flow of 200 steps, 199 of them roots
    Wide,
    /// 50 flows of ten steps that follow one another
    Crowd,
    /// Four flows of 25 steps that follow one another: from a decision to the create that it calls for
    Chain,
    /// A DaemonJob on 5,000 nodes, beside the smaller one; then memory, and what heartbeats cost
    Large,
}

/// What happens while the host is measured.
#[derive(Clone, Copy, Debug, ValueEnum)]
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
    /// One job reboots all nodes, a tenth of them at once, with and without kills: its time to the least that is possible, how many
    /// nodes are out of service, and what goes wrong
    Reboots,
    /// One job checks all nodes, a tenth of them at once, with and without kills: its time to the least that is possible, how many
    /// checks run, and what goes wrong
    Checks,
    /// OpsJobs: one for all nodes, and one for every fifth of them, which stay in work over a restart of the host
    OpsJobs,
    /// An OpsJob runs a script of a second on each node, twenty of them at once: its time to the least that is possible
    Addons,
}

/// How targets are replaced.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Modes {
    /// Evict and wait for the controller
    Evict,
    /// The CollaSet's protocol
    #[value(name = "collaset")]
    CollaSet,
    /// One after the other
    Both,
}

/// What fails in the middle of a job.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Failure {
    /// The API server is killed and restarted, twice
    ApiServerKilled,
    /// The store is killed and restarted
    StoreKilled,
    /// The API server stands still for 8 s
    ApiServerFrozen,
}

/// What stands for the cluster.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Ground {
    /// The in-memory API; without ratios
    Sim,
    /// etcd and kube-apiserver
    Real,
}

impl Bench {
    /// What the bench itself is called with.
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

/// The word for a value on a command line.
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
