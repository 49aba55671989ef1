//! `oarlock ops`: OpsJobs by REST where a server is named, else by the Kubernetes API.

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
use self::show::{Output, shown_job, shown_list};
use super::jobs::NamespaceArgs;
use super::jobs::ops::OpsClient;
use super::jobs::watch::{WatchOutput, follow};
use super::print;

const EXAMPLES: &str = "\
Examples:
  oarlock ops create reboot --name reboot-a --node node-0 --drain --watch
      by the Kubernetes API, with the rights that kubectl has
  kubectl create token ops-bot --audience oarlock > token
  export OARLOCK_SERVER=https://ops.example OARLOCK_TOKEN_FILE=token
  oarlock ops list --phase Running
      by REST, as whoever the token is
  oarlock ops get reboot-a-bcd245 -o json | jq .outputs
  oarlock ops stop reboot-a-bcd245";

const CREATE_EXAMPLES: &str = "\
Examples:
  oarlock ops create reboot --name kernel --workspace team-a --drain --batch 2 --ratio 0.9 --watch
      two nodes of a workspace at once; it fails once more than a tenth of them have
  oarlock ops create preflight --name disks --cluster local --image busybox --script check.sh --host-path /var/log
      a check on all nodes; --script - reads it from standard input
  oarlock ops create addon --name swap --cluster local --template swap-off --idle-only
      the script of an AddonTemplate on each node, once no pod of a workload is there
  oarlock ops create exportimage --name web-image --workload default/deployment/web --watch
      the image that it runs, in the registry of the host's --export-registry
  oarlock ops create dumplog --name web-logs --workload default/deployment/web --watch
      the logs of all pods of a workload, in one file
  oarlock ops create reboot --name kernel --cluster local --dry-run
      which nodes it would be, and which not; nothing is made (by REST)
  oarlock ops create -f body.json
      the body of a request as docs/opsjob-rest.md describes it";

const LOGS_EXAMPLES: &str = "\
Examples:
  oarlock ops logs web-logs-bcd245 | grep -i error
      how far the job is goes to standard error
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
    /// Make an OpsJob
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Box<CreateCommand>),
    /// Print OpsJobs, the newest first
    List(ListCommand),
    /// Print one OpsJob with its nodes and its outputs
    Get(GetCommand),
    /// Follow an OpsJob to its end; the exit code is 0 where it succeeded, 1 where it failed, 3 where that is not known
    Watch(WatchCommand),
    /// Follow a dumplog to its end and print the lines that it has collected; by REST alone
    #[command(after_help = LOGS_EXAMPLES)]
    Logs(LogsCommand),
    /// End OpsJobs by force: no further node begins, and those in work are released
    Stop(NamedCommand),
    /// Delete OpsJobs; those that live are stopped first
    Delete(NamedCommand),
}

/// The server or the cluster.
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
    /// Print which nodes it would be, and make nothing; by REST alone
    #[arg(long, conflicts_with = "watch")]
    dry_run: bool,
    /// Follow the job to its end
    #[arg(short, long)]
    watch: bool,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Output>,
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
    /// Those of users whose name has this part
    #[arg(long, value_name = "PART")]
    user: Option<String>,
    /// Those whose name or id has this part
    #[arg(long, value_name = "PART")]
    name: Option<String>,
    /// Those of a workspace
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Most jobs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Output>,
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
    output: Option<Output>,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Args)]
struct WatchCommand {
    /// The id of the job
    #[arg(value_name = "ID")]
    id: String,
    /// Output format [default: a screen on a terminal; by REST, and elsewhere, lines of text]
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
    /// The file that the lines go into [default: standard output]
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

/// What answers.
enum Place {
    Server(Server),
    Cluster(Cluster),
}

impl PlaceArgs {
    async fn open(self) -> anyhow::Result<Place> {
        let Self { server, cluster } = self;
        match server.open(&cluster).await? {
            Some(server) => Ok(Place::Server(server)),
            None => Ok(Place::Cluster(Cluster::new(OpsClient::new(cluster).await?))),
        }
    }
}

impl Place {
    /// The job of this id, as a resource.
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

/// Follows a job of a server to its end, as `oarlock ops watch` does.
#[cfg(feature = "dev")]
pub(super) async fn follow_by_rest(url: &str, token: &std::path::Path, id: &str) -> anyhow::Result<ExitCode> {
    show::follow_polled(&Server::at(url, token)?, id, None).await
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
            Place::Server(server) => logs::print_logs(&server, &id, file).await,
            Place::Cluster(_) => bail!("logs are read by the REST API: name one with --server"),
        },
        OpsCommand::Stop(NamedCommand { ids, place }) => {
            let place = place.open().await?;
            for id in &ids {
                match &place {
                    Place::Server(server) => server.stop(id).await?,
                    Place::Cluster(cluster) => cluster.stop(id).await?,
                }
                print(&format!("ops/{id} stops\n"))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        OpsCommand::Delete(NamedCommand { ids, place }) => {
            let place = place.open().await?;
            for id in &ids {
                match &place {
                    Place::Server(server) => server.delete(id).await?,
                    Place::Cluster(cluster) => cluster.delete(id).await?,
                }
                print(&format!("ops/{id} goes\n"))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl OpsArgs {
    /// True where it follows a job, so that a failure of the command is another thing than one of the job.
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
    if watch && matches!(output, Some(Output::Yaml | Output::Wide)) {
        bail!("--watch prints lines of text, or of JSON by -o json");
    }
    let place = place.open().await?;
    let id = match &place {
        Place::Server(server) if dry_run => return print(&show::rehearsal(&server.rehearse(body).await?, output)?),
        Place::Cluster(_) if dry_run => bail!("--dry-run asks the REST API: name one with --server"),
        Place::Server(server) => {
            let made = server.create(body).await?;
            made.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
            made.id
        }
        Place::Cluster(cluster) => cluster.create(&body).await?,
    };
    if watch {
        return place.watch(&id, output.and_then(Output::of_watch)).await;
    }
    match output {
        None | Some(Output::Wide) => print(&format!("ops/{id} created\n")),
        Some(_) => print(&shown_job(&place.job(&id).await?, output)?),
    }
}

async fn list(args: ListCommand) -> anyhow::Result<ExitCode> {
    let ListCommand { kind, phase, user, name, workspace, limit, output, place } = args;
    let filters: Vec<(&str, String)> =
        [("type", kind), ("phase", phase), ("userName", user), ("jobName", name), ("workspaceId", workspace)]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
    let jobs: Vec<Value> = match place.open().await? {
        Place::Server(server) => server.list(&filters, limit).await?,
        Place::Cluster(cluster) => cluster.list(&filters, limit).await?,
    };
    print(&shown_list(&jobs, output)?)
}
