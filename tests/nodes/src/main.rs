//! The program behind `cargo xtask cluster`: a real cluster on one machine, and the processes of the cluster.
//!
//! `up` starts a keeper and waits until all nodes are Ready. The keeper starts the cluster in its own namespaces and
//! ends with it. The cluster itself calls `keep`, `init`, `outer` and `inner`; do not call them by hand.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use oarlock_nodes::{image, inner, keeper, outer, reaper, states};

/// A real cluster on this machine, with kubelets and containers.
#[derive(Debug, Parser)]
#[command(name = "oarlock-nodes")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster, and wait until its nodes are Ready
    Up {
        #[command(flatten)]
        start: keeper::Start,
    },
    /// Check that the machine has everything for a cluster, before anything is built
    #[command(hide = true)]
    Check {
        /// Folder of the cluster
        folder: PathBuf,
    },
    /// Show a cluster and its nodes
    Status {
        /// Folder of the cluster
        folder: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Kill or boot a node
    Node {
        /// Folder of the cluster
        folder: PathBuf,
        /// `kill` or `boot`
        what: states::Order,
        /// Name of the node
        name: String,
    },
    /// End a cluster, and remove its files and control groups
    Down {
        /// Folder of the cluster
        folder: PathBuf,
    },
    /// Write a folder as an image, without a container engine
    Image {
        #[command(flatten)]
        archive: image::Archive,
    },
    /// Hold the lock of a cluster, and run the cluster until it ends
    #[command(hide = true)]
    Keep {
        folder: PathBuf,
        #[arg(long)]
        bound: bool,
    },
    /// Run a program as the first process of a namespace, and adopt orphaned processes
    #[command(hide = true)]
    Init {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// Run the control plane and the nodes, within their own namespaces
    #[command(hide = true)]
    Outer { folder: PathBuf },
    /// Run one node, within its own namespaces
    #[command(hide = true)]
    Inner { folder: PathBuf, number: u8 },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Up { start } => keeper::up(&start),
        Command::Check { folder } => keeper::check(&folder),
        Command::Status { folder, json } => keeper::status(&folder, json),
        Command::Node { folder, what, name } => keeper::order(&folder, what, &name),
        Command::Down { folder } => keeper::down(&folder),
        Command::Image { archive } => image::write(&archive),
        Command::Keep { folder, bound } => keeper::keep(&folder, bound),
        Command::Init { program } => return reaper::run(&program),
        Command::Outer { folder } => outer::run_in(&folder),
        Command::Inner { folder, number } => inner::run_node(&folder, number),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("cluster: {cause:#}");
            ExitCode::FAILURE
        }
    }
}
