//! `oarlock plan`: shows what a job would do, before it is created. The command writes nothing, neither to the cluster
//! nor elsewhere.

mod budgets;
mod caveats;
mod cluster_plugin;
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
use self::report::Progress;
use super::host;
use super::jobs::{JobClient, NamespaceArgs};
use super::output::print;
use crate::manifests::HOST_NAMESPACE;
use crate::preview::{Preview, PreviewSetup};

/// The exit code if something in the plan would go wrong.
const TROUBLE: u8 = 4;

const EXAMPLES: &str = "\
Examples:
  oarlock run Replace -l app=web --print > job.yaml
  oarlock plan job.yaml --plugins ./plugins
      show the plugin's first change to each pod, and which pods would wait and why
  oarlock plan job.yaml --plugins ./plugins --server
      also send each first change to the API server as a dry run (dryRun=All)
  oarlock plan job.yaml --plugins ./plugins -o json | jq '.targets[] | select(.outcome == \"Failed\")'
      print JSON for scripts; docs/planning.md lists the fields
  oarlock plan - --plugins replace.wasm --grants grants.yaml < job.yaml
      use one plugin file, and read the job from standard input

The plugin runs on this machine, on one list of each kind that it reads. The command checks the plugin's proposals against its
grant and changes nothing. Later changes depend on the cluster, so the plan shows them only as possible.

Exit code: 0 a plan was made; 1 no plan was made; 4 a plan was made, but a target would fail or the API server refuses a change.";

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
    /// Send the job and each first change to the API server as a dry run (dryRun=All)
    #[arg(long)]
    server: bool,
    /// Show each target on its own line
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

/// The inputs of a plan from this machine.
struct PlanSources {
    job: OperationJob,
    /// The path of `--plugins`.
    plugins: Option<PathBuf>,
    grants: Option<PathBuf>,
    /// True to send the first changes to the API server as dry runs.
    server: bool,
    /// The namespace of the host's lease.
    host_namespace: String,
}

/// Plans the job and prints the plan.
pub(crate) async fn run(args: PlanArgs) -> anyhow::Result<ExitCode> {
    let PlanArgs { job, plugins, grants, server, all, output, host_namespace, place } = args;
    let sources = PlanSources { job: job_file::read(&job)?, plugins, grants, server, host_namespace };
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

/// Makes the plan of a job. The job's namespace is that of its file, else `named`, else the client's.
async fn make(
    client: JobClient,
    named: Option<&str>,
    sources: PlanSources,
    progress: &Progress,
) -> anyhow::Result<JobPlan> {
    let PlanSources { job, plugins, grants, server, host_namespace } = sources;
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
    let stage = PreviewSetup { cluster, plugins: plugin.plugins.clone(), plugin: plugin.info.clone(), known };
    let mut preview = Preview::new(&stage, job.previewed(), |done, all| progress.targets(done, all));
    preview.beside_other_jobs().await;
    let first = preview.first().await?;
    let later = preview.later().await?;
    let mut plan = shown::plan(&job, &plugin, &first, &later);
    plan.cluster = served.compared(job.action(), &plugin.info);
    plan.warnings = job.warnings();
    plan.warnings.extend(preview.caveats().iter().map(|caveat| caveats::describe(caveat, &job)));
    plan.warnings.extend(shown::warnings(&stage, &first, &later));
    plan.warnings.extend(budgets::warnings(&client, &stage, &later).await);
    if server {
        plan.server = Some(tried::ask_for_job(&client, &job).await);
        tried::ask_for_targets(&stage, &later, &mut plan, progress).await;
    }
    made_up::show(&mut plan, job.prefix());
    plan.count();
    Ok(plan)
}
