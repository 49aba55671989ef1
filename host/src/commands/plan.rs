//! `oarlock plan`: what a job would do, before it is created. Nothing is written, in the cluster or elsewhere.

mod budgets;
mod cluster_plugin;
mod doubts;
mod job_file;
mod lists;
mod local_plugin;
mod made_up;
mod report;
mod rights;
mod shown;
mod tried;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use k8s_openapi::jiff::Timestamp;
use oarlock_api::OperationJob;
use oarlock_kube::{Cluster, Setup};
use oarlock_view::{JobPlan, TargetRows, plan_document, plan_text};

use self::local_plugin::LocalPlugin;
pub(super) use self::report::Progress;
use super::jobs::{JobClient, NamespaceArgs};
use super::{host, print};
use crate::manifests::HOST_NAMESPACE;
use crate::rehearsal::{Rehearsal, Stage};

/// Exit code of a plan in which something would go wrong.
const TROUBLE: u8 = 4;

const EXAMPLES: &str = "\
Examples:
  oarlock run Replace -l app=web --print > job.yaml
  oarlock plan job.yaml --plugins ./plugins
      what the plugin would do first to each pod, which pods would wait, and for what
  oarlock plan job.yaml --plugins ./plugins --server
      the same, and what the API server says to each first request, which it only tries (dryRun=All)
  oarlock plan job.yaml --plugins ./plugins -o json | jq '.targets[] | select(.outcome == \"Failed\")'
      for scripts; docs/planning.md lists the fields
  oarlock plan - --plugins replace.wasm --grants grants.yaml < job.yaml
      one plugin file, and the job from standard input

The plugin runs on this machine, on one list of each kind that it reads, and its proposals are checked against its grant here.
Nothing is changed. What comes after the first changes depends on the cluster, so the plan only says what is possible.

Exit code: 0 a plan was made, 1 none was, 4 a plan was made, and some target would fail or the API server refuses something.";

/// Arguments of `oarlock plan`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlanArgs {
    /// The job: one OperationJob as YAML or JSON; - is standard input
    #[arg(value_name = "FILE")]
    job: PathBuf,
    /// Directory of the plugin files, or the file of one plugin
    #[arg(long, value_name = "DIR|FILE")]
    plugins: Option<PathBuf>,
    /// Grants of the plugins [default: grants.yaml beside the plugin directory]
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Have the API server try the job and each first change, without making it (dryRun=All)
    #[arg(long)]
    server: bool,
    /// Show every target in a line of its own
    #[arg(long, conflicts_with = "output")]
    all: bool,
    /// Output format [default: text]
    #[arg(short, long, value_enum)]
    output: Option<PlanOutput>,
    /// Namespace of the host, whose lease says which plugin serves
    #[arg(long, value_name = "NAMESPACE", default_value = HOST_NAMESPACE)]
    host_namespace: String,
    #[command(flatten)]
    place: NamespaceArgs,
}

/// The format of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanOutput {
    /// One document.
    Json,
}

/// What a plan is made from, on this machine.
pub(super) struct Sources {
    pub(super) job: OperationJob,
    /// As `--plugins` and `--grants` name them.
    pub(super) plugins: Option<PathBuf>,
    pub(super) grants: Option<PathBuf>,
    /// Have the API server try the first changes.
    pub(super) server: bool,
    /// Where the lease of the host is.
    pub(super) host_namespace: String,
}

/// Plans the job and prints the plan.
pub(crate) async fn run(args: PlanArgs) -> anyhow::Result<ExitCode> {
    let PlanArgs { job, plugins, grants, server, all, output, host_namespace, place } = args;
    let sources = Sources { job: job_file::read(&job)?, plugins, grants, server, host_namespace };
    let named = place.named().map(str::to_owned);
    let progress = Progress::on_terminal();
    let plan = make(JobClient::new(place).await?, named.as_deref(), sources, &progress).await?;
    progress.end();
    let text = match output {
        Some(PlanOutput::Json) => plan_document(&plan).context("cannot write the plan as JSON")?,
        None => plan_text(&plan, if all { TargetRows::All } else { TargetRows::First }),
    };
    let printed = print(&text)?;
    Ok(if plan.has_trouble() { ExitCode::from(TROUBLE) } else { printed })
}

/// Makes the plan of a job, whose namespace is its own, the `named` one or the client's.
pub(super) async fn make(
    client: JobClient,
    named: Option<&str>,
    sources: Sources,
    progress: &Progress,
) -> anyhow::Result<JobPlan> {
    let Sources { job, plugins, grants, server, host_namespace } = sources;
    let job = job_file::placed(job, named, client.namespace())?;
    let client = client.in_namespace(job.namespace());
    let served = cluster_plugin::served(&client, &host_namespace).await;
    let Some(plugins) = plugins else { return Err(local_plugin::none_named(job.action(), &served)) };
    progress.say("loading the plugin");
    let grants = grants.unwrap_or_else(|| host::beside(&plugins));
    let plugin = LocalPlugin::load(&plugins, &grants, job.action()).await?;
    progress.say("listing");
    let (cluster, _events) = Cluster::open(Setup {
        client: client.raw().clone(),
        clock: Arc::new(Timestamp::now),
        identity: "oarlock plan".to_owned(),
    });
    let known = lists::read(&cluster, &plugin, &job).await?;
    let stage = Stage { cluster, plugins: plugin.plugins.clone(), plugin: plugin.info.clone(), known };
    let mut rehearsal = Rehearsal::new(&stage, job.rehearsed(), |done, all| progress.targets(done, all));
    rehearsal.beside_other_jobs().await;
    let first = rehearsal.first().await?;
    let later = rehearsal.later().await?;
    let mut plan = shown::plan(&job, &plugin, (&first, &later));
    plan.cluster = served.compared(job.action(), &plugin.info);
    plan.warnings = job.warnings();
    plan.warnings.extend(rehearsal.doubts().iter().map(|doubt| doubts::words(doubt, &job)));
    plan.warnings.extend(shown::warnings(&stage, &first, &later));
    plan.warnings.extend(budgets::warnings(&client, &stage, &later).await);
    if server {
        tried::ask(&client, &stage, (&job, &later), &mut plan, progress).await?;
    }
    made_up::show(&mut plan, job.prefix());
    plan.count();
    Ok(plan)
}
