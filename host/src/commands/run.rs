//! `oarlock run`: builds an OperationJob from arguments, and creates, prints or follows it.

pub(super) mod amount;
mod job;
mod label_selector;
mod target_uids;

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{ArgGroup, Args, ValueEnum};
use oarlock_api::OperationJob;
use serde_json::Value;

use self::job::JobArgs;
use self::target_uids::name_objects;
use super::jobs::watch::{WatchOutput, follow};
use super::jobs::{JobClient, NamespaceArgs};
use super::output::{json, print};

const EXAMPLES: &str = "\
Examples:
  oarlock run Replace --selector app=web --partition 1 --watch
      replace one pod first; then raise the partition: kubectl patch opj NAME --type merge -p '{\"spec\":{\"partition\":10}}'
  oarlock run Replace --owner deployment/web --max-unavailable 10% --failure-policy FailFast:1
      replace all pods of a Deployment, a tenth of them at once; stop at the second failure
  oarlock run Replace --target web-1 web-2 --deadline 10m --retries 2
      replace pods by name; `--target $(kubectl get pods -l app=web -o name)` works too
  oarlock run Replace --selector app=web --dry-run --watch
      show what the plugin would do to each pod, and change nothing
  oarlock run Tag --selector app=web --param reason=audit --param count=3
      pass parameters to the plugin; each value is YAML, so quote a text such as true: --param 'script=\"true\"'
  oarlock run Replace --selector app=web --print > job.yaml
      print the job for kubectl create -f, and create nothing

The command reads the UIDs of the pods and nodes that --target names. The job does not touch an object that is deleted and
created again under its name. Without --partition and --parallelism, all targets start at once. Then only disruption budgets
delay evictions.";

/// Arguments of `oarlock run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("chosen").required(true))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Follow the job to its end; the exit code is that of `oarlock watch`
    #[arg(short, long, conflicts_with = "print")]
    watch: bool,
    /// Print the job instead of creating it
    #[arg(long)]
    print: bool,
    /// Print the job in this format after its creation, or instead of it; with --watch, print its changes as json
    #[arg(short, long, value_enum)]
    output: Option<RunOutput>,
    #[command(flatten)]
    place: NamespaceArgs,
}

/// The format of a printed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunOutput {
    /// As YAML.
    Yaml,
    /// As JSON.
    Json,
    /// Its kind and name, such as opj/web.
    Name,
}

impl RunArgs {
    /// Returns true if the command follows its job, so that the exit code is that of the job.
    pub(super) fn watches(&self) -> bool {
        self.watch
    }
}

/// Creates the job, or prints it.
pub(crate) async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let RunArgs { job, watch, print: only_print, output, place } = args;
    let mut job = job.job()?;
    if only_print {
        job.metadata.namespace = place.named().map(str::to_owned);
        name_objects(&JobClient::new(place).await, &mut job).await;
        return print(&shown(&job, output.unwrap_or(RunOutput::Yaml))?);
    }
    let format = match output {
        Some(RunOutput::Json) => Some(WatchOutput::Json),
        None => None,
        Some(_) if watch => bail!("--watch prints changes as text or as json: leave -o out, or write -o json"),
        Some(_) => None,
    };
    let client = Ok(JobClient::new(place).await?);
    name_objects(&client, &mut job).await;
    let client = client?;
    let created = client.create(job).await?;
    let name = created.metadata.name.clone().unwrap_or_default();
    if watch {
        return follow(client, &name, format).await;
    }
    match output {
        Some(output) => print(&shown(&created, output)?),
        None => {
            let namespace = client.namespace();
            print(&format!("opj/{name} created; `oarlock watch opj/{name} -n {namespace}` follows it\n"))
        }
    }
}

fn shown(job: &OperationJob, output: RunOutput) -> anyhow::Result<String> {
    let mut value = serde_json::to_value(job).context("cannot write the job as JSON")?;
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, field| !field.is_null());
    }
    match output {
        RunOutput::Yaml => serde_saphyr::to_string(&value).context("cannot write the job as YAML"),
        RunOutput::Json => json(&value),
        RunOutput::Name => match (&job.metadata.name, &job.metadata.generate_name) {
            (Some(name), _) => Ok(format!("opj/{name}\n")),
            (None, prefix) => {
                bail!("the cluster chooses the name ({}...): give --name", prefix.as_deref().unwrap_or_default())
            }
        },
    }
}
