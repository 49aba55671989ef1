//! The program behind `cargo xtask cluster`: a real cluster on one machine, and the processes that it consists of.
//!
//! `up` starts a keeper and waits until all nodes are Ready; the keeper starts the cluster in namespaces of its own and ends with
//! it. `init`, `outer` and `node` are what runs inside: nobody calls them by hand.

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
    /// Say what is missing for a cluster, before anything is built for it
    #[command(hide = true)]
    Check {
        /// Its folder
        folder: PathBuf,
    },
    /// Show a cluster and its nodes
    Status {
        /// Its folder
        folder: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Kill or boot a node
    Node {
        /// The folder of its cluster
        folder: PathBuf,
        /// `kill` or `boot`
        what: states::Order,
        /// Its name
        name: String,
    },
    /// End a cluster, and remove what it or a dead one has left
    Down {
        /// Its folder
        folder: PathBuf,
    },
    /// Write a folder as an image, without a container engine
    Image {
        #[command(flatten)]
        archive: image::Archive,
    },
    /// Stay as long as the cluster lives
    #[command(hide = true)]
    Keep {
        folder: PathBuf,
        #[arg(long)]
        bound: bool,
    },
    /// Run a program as the first process of a namespace, and take in what loses its parent
    #[command(hide = true)]
    Init {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// The control plane and the nodes, within namespaces of their own
    #[command(hide = true)]
    Outer { folder: PathBuf },
    /// One node, within namespaces of its own
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
