//! `oarlock ops`: manages OpsJobs by REST if the user names a server, otherwise by the Kubernetes API.

mod body;
mod cluster;
mod logs;
mod server;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use oarlock_view::JobView;
use serde_json::Value;

use self::body::CreateArgs;
use self::cluster::Cluster;
use self::server::{Server, ServerArgs};
use self::show::{ShowFormat, shown_job, shown_list};
use super::jobs::NamespaceArgs;
use super::jobs::ops::OpsClient;
use super::jobs::watch::{WatchOutput, follow};
use super::output::print;

const EXAMPLES: &str = "\
Examples:
  oarlock ops create reboot --name reboot-a --node node-0 --drain --watch
      use the Kubernetes API, with the rights of kubectl
  kubectl create token ops-bot --audience oarlock > token
  export OARLOCK_SERVER=https://ops.example OARLOCK_TOKEN_FILE=token
  oarlock ops list --phase Running
      use the REST API, as the user of the token
  oarlock ops get reboot-a-bcd245 -o json | jq .outputs
  oarlock ops stop reboot-a-bcd245";

const CREATE_EXAMPLES: &str = "\
Examples:
  oarlock ops create reboot --name kernel --workspace team-a --drain --batch 2 --ratio 0.9 --watch
      reboot the nodes of a workspace, two at once; the job fails if more than a tenth of them fail
  oarlock ops create preflight --name disks --cluster local --image busybox --script check.sh --host-path /var/log
      run a check on all nodes; --script - reads the script from standard input
  oarlock ops create addon --name swap --cluster local --template swap-off --idle-only
      run the script of an AddonTemplate on each node, once no pod of a workload is on the node
  oarlock ops create exportimage --name web-image --workload default/deployment/web --watch
      copy the image that the workload runs into the registry of the host's --export-registry
  oarlock ops create dumplog --name web-logs --workload default/deployment/web --watch
      collect the logs of all pods of a workload into one file
  oarlock ops create reboot --name kernel --cluster local --dry-run
      show which nodes the job would reboot, and create nothing (only by REST)
  oarlock ops create -f body.json
      send the request body of a file; docs/opsjob-rest.md describes its fields";

const LOGS_EXAMPLES: &str = "\
Examples:
  oarlock ops logs web-logs-bcd245 | grep -i error
      print the progress of the job to standard error
  oarlock ops logs web-logs-bcd245 --file web.log";

/// Arguments of `oarlock ops`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct OpsArgs {
    #[command(subcommand)]
    command: OpsCommand,
}

#[derive(Debug, Subcommand)]
enum OpsCommand {
    /// Create an OpsJob
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Box<CreateCommand>),
    /// Print OpsJobs, the newest first
    List(ListCommand),
    /// Print one OpsJob with its nodes and its outputs
    Get(GetCommand),
    /// Follow an OpsJob to its end; the exit code is 0 if it succeeded, 1 if it failed, 3 if the outcome is unknown
    Watch(WatchCommand),
    /// Follow a dumplog to its end and print the lines that it collected; only by REST
    #[command(after_help = LOGS_EXAMPLES)]
    Logs(LogsCommand),
    /// Stop OpsJobs: no further node starts, and the started ones are released
    Stop(NamedCommand),
    /// Delete OpsJobs; running ones are stopped first
    Delete(NamedCommand),
}

/// The flags of the server or the cluster.
#[derive(Debug, Args)]
struct PlaceArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    cluster: NamespaceArgs,
}

#[derive(Debug, Args)]
struct CreateCommand {
    #[command(flatten)]
    create: CreateArgs,
    /// The body of the request in JSON; `-` is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["kind", "name"])]
    file: Option<PathBuf>,
    /// Print the nodes that the job would work on, and create nothing; only by REST
    #[arg(long, conflicts_with = "watch")]
    dry_run: bool,
    /// Follow the job to its end
    #[arg(short, long)]
    watch: bool,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<ShowFormat>,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Args)]
struct ListCommand {
    /// addon, preflight, dumplog, reboot or exportimage
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Pending, Running, Succeeded or Failed
    #[arg(long, value_name = "PHASE")]
    phase: Option<String>,
    /// Only jobs of users whose name contains this text
    #[arg(long, value_name = "PART")]
    user: Option<String>,
    /// Only jobs whose name or id contains this text
    #[arg(long, value_name = "PART")]
    name: Option<String>,
    /// Only jobs of this workspace
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Most jobs to print
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<ShowFormat>,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Args)]
struct GetCommand {
    /// The id of the job
    #[arg(value_name = "ID")]
    id: String,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<ShowFormat>,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Args)]
struct WatchCommand {
    /// The id of the job
    #[arg(value_name = "ID")]
    id: String,
    /// Output format [default: a screen on a terminal; lines of text by REST or without a terminal]
    #[arg(short, long, value_enum)]
    output: Option<WatchOutput>,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Args)]
struct LogsCommand {
    /// The id of the job
    #[arg(value_name = "ID")]
    id: String,
    /// The file to write the lines to [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Args)]
struct NamedCommand {
    /// The ids of the jobs
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// The API to use.
enum OpsApi {
    Server(Server),
    Cluster(Cluster),
}

impl PlaceArgs {
    async fn open(self) -> anyhow::Result<OpsApi> {
        let Self { server, cluster } = self;
        match server.open(&cluster).await? {
            Some(server) => Ok(OpsApi::Server(server)),
            None => Ok(OpsApi::Cluster(Cluster::new(OpsClient::new(cluster).await?))),
        }
    }
}

impl OpsApi {
    /// Returns the job of this id, as a resource.
    async fn job(&self, id: &str) -> anyhow::Result<JobView> {
        match self {
            Self::Server(server) => Ok(JobView::of_ops(&server.job(id).await?, None)),
            Self::Cluster(cluster) => cluster.client.view(id).await,
        }
    }

    async fn watch(self, id: &str, output: Option<WatchOutput>) -> anyhow::Result<ExitCode> {
        match self {
            Self::Server(server) => show::follow_polled(&server, id, output).await,
            Self::Cluster(cluster) => follow(cluster.client, id, output).await,
        }
    }
}

/// Runs the command.
pub(crate) async fn run(args: OpsArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        OpsCommand::Create(args) => create(*args).await,
        OpsCommand::List(args) => list(args).await,
        OpsCommand::Get(GetCommand { id, output, place }) => {
            let job = place.open().await?.job(&id).await?;
            print(&shown_job(&job, output)?)
        }
        OpsCommand::Watch(WatchCommand { id, output, place }) => place.open().await?.watch(&id, output).await,
        OpsCommand::Logs(LogsCommand { id, file, place }) => match place.open().await? {
            OpsApi::Server(server) => logs::print_logs(&server, &id, file).await,
            OpsApi::Cluster(_) => bail!("logs are read by the REST API: name one with --server"),
        },
        OpsCommand::Stop(NamedCommand { ids, place }) => {
            let place = place.open().await?;
            for id in &ids {
                match &place {
                    OpsApi::Server(server) => server.stop(id).await?,
                    OpsApi::Cluster(cluster) => cluster.stop(id).await?,
                }
                print(&format!("ops/{id} stops\n"))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        OpsCommand::Delete(NamedCommand { ids, place }) => {
            let place = place.open().await?;
            for id in &ids {
                match &place {
                    OpsApi::Server(server) => server.delete(id).await?,
                    OpsApi::Cluster(cluster) => cluster.delete(id).await?,
                }
                print(&format!("ops/{id} goes\n"))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl OpsArgs {
    /// Returns true if the command follows a job, so that an error of the command needs another exit code than a failed
    /// job.
    pub(crate) fn watches(&self) -> bool {
        match &self.command {
            OpsCommand::Create(args) => args.watch,
            OpsCommand::Watch(_) => true,
            _ => false,
        }
    }
}

async fn create(args: CreateCommand) -> anyhow::Result<ExitCode> {
    let CreateCommand { create, file, dry_run, watch, output, place } = args;
    let body = match file {
        Some(file) => super::text_file::text_of(&file)
            .with_context(|| format!("cannot read {}", super::text_file::shown(&file)))?,
        None => create.body()?.to_string(),
    };
    if watch && matches!(output, Some(ShowFormat::Yaml | ShowFormat::Wide)) {
        bail!("--watch prints lines of text, or of JSON by -o json");
    }
    let place = place.open().await?;
    let id = match &place {
        OpsApi::Server(server) if dry_run => return print(&show::rehearsal(&server.rehearse(body).await?, output)?),
        OpsApi::Cluster(_) if dry_run => bail!("--dry-run asks the REST API: name one with --server"),
        OpsApi::Server(server) => {
            let made = server.create(body).await?;
            made.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
            made.id
        }
        OpsApi::Cluster(cluster) => cluster.create(&body).await?,
    };
    if watch {
        return place.watch(&id, output.and_then(ShowFormat::of_watch)).await;
    }
    match output {
        None | Some(ShowFormat::Wide) => print(&format!("ops/{id} created\n")),
        Some(_) => print(&shown_job(&place.job(&id).await?, output)?),
    }
}

/// A parameter of a list, which shows only the jobs that match it.
pub(super) struct ListFilter {
    /// The name of the parameter in the REST API.
    name: &'static str,
    value: String,
}

async fn list(args: ListCommand) -> anyhow::Result<ExitCode> {
    let ListCommand { kind, phase, user, name, workspace, limit, output, place } = args;
    let filters: Vec<ListFilter> =
        [("type", kind), ("phase", phase), ("userName", user), ("jobName", name), ("workspaceId", workspace)]
            .into_iter()
            .filter_map(|(name, value)| Some(ListFilter { name, value: value? }))
            .collect();
    let jobs: Vec<Value> = match place.open().await? {
        OpsApi::Server(server) => server.list(&filters, limit).await?,
        OpsApi::Cluster(cluster) => cluster.list(&filters, limit).await?,
    };
    print(&shown_list(&jobs, output)?)
}
