//! `oarlock get`: prints jobs, or one job with its targets.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use oarlock_view::{ListColumns, TargetRows, job_document, job_list, job_text, jobs_document};

use super::names::{JobName, got_name};
use super::ops::OpsClient;
use super::{JobClient, NamespaceArgs, now};
use crate::commands::output::print;

const EXAMPLES: &str = "\
Examples:
  oarlock get                                      the jobs of this namespace, and why they wait
  oarlock get -A                                   the jobs of all namespaces
  oarlock get opj/web                              one job: its progress, and the targets with problems
  oarlock get opj/web -o wide                      one job with all its targets
  oarlock get ops/reboot-a                         an OpsJob with its phase, nodes and outputs
  oarlock get opj/web -o json                      JSON for scripts; docs/watching.md lists the fields";

/// Arguments of `oarlock get`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GetArgs {
    /// A job as NAME or opj/NAME, an OpsJob as ops/NAME [default: all OperationJobs]
    #[arg(value_name = "NAME", value_parser = got_name)]
    name: Option<JobName>,
    /// Print the jobs of all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["name", "namespace"])]
    all_namespaces: bool,
    /// Output format [default: a table]
    #[arg(short, long, value_enum)]
    output: Option<GetOutput>,
    #[command(flatten)]
    place: NamespaceArgs,
}

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GetOutput {
    /// One document.
    Json,
    /// A table with more columns; for one job, all of its targets.
    Wide,
}

/// Prints the jobs.
pub(crate) async fn run(args: GetArgs) -> anyhow::Result<ExitCode> {
    let GetArgs { name, all_namespaces, output, place } = args;
    let wide = output == Some(GetOutput::Wide);
    let text = match name {
        Some(name) => {
            let job = match name {
                JobName::Ops(name) => OpsClient::new(place).await?.view(&name).await?,
                JobName::Operation(name) => JobClient::new(place).await?.view(&name).await?,
            };
            match output {
                Some(GetOutput::Json) => job_document(&job, now()).context("cannot write the job as JSON")?,
                _ => job_text(&job, if wide { TargetRows::All } else { TargetRows::First }, now()),
            }
        }
        None => {
            let client = JobClient::new(place).await?;
            let jobs = client.list(all_namespaces).await?;
            match output {
                Some(GetOutput::Json) => jobs_document(&jobs, now()).context("cannot write the jobs as JSON")?,
                _ if jobs.is_empty() && all_namespaces => "No jobs found.\n".to_owned(),
                _ if jobs.is_empty() => {
                    format!("No jobs found in namespace {}; `oarlock get -A` looks in all.\n", client.namespace())
                }
                _ => job_list(&jobs, ListColumns { namespace: all_namespaces, wide }, now()),
            }
        }
    };
    print(&text)
}
