//! `oarlock crds`: prints the CustomResourceDefinitions, or compares their levels with those that a cluster serves.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::Api;
use oarlock_api::CRD_LEVEL;
use oarlock_kube::transport::client::connect;

use super::host::ClusterArgs;
use super::manifests::{DocumentFormat, print_documents};
use super::output::print;
use crate::manifests;

const EXAMPLES: &str = "\
Examples:
  oarlock crds | kubectl apply -f -
  oarlock crds --newest opsjobs.oarlock.dev=1       exit with 1 if the cluster serves this definition at a higher level

`helm rollback` runs the second form before it applies the definitions of an older release.";

/// Arguments of `oarlock crds`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CrdsArgs {
    /// Output format; json is one list
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: DocumentFormat,
    /// Print nothing, and fail if the cluster serves this definition at a higher level; can be repeated
    #[arg(long, value_name = "NAME=LEVEL", value_parser = leveled)]
    newest: Vec<(String, u32)>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

fn leveled(text: &str) -> Result<(String, u32), String> {
    let read = text.split_once('=').and_then(|(name, level)| Some((name.to_owned(), level.parse().ok()?)));
    read.ok_or_else(|| "give NAME=LEVEL, such as opsjobs.oarlock.dev=1".to_owned())
}

/// Prints the definitions, or compares them.
pub(crate) async fn run(args: CrdsArgs) -> anyhow::Result<ExitCode> {
    if args.newest.is_empty() {
        return print_documents(&manifests::crds(), args.output);
    }
    let (client, _server) = connect(&args.cluster.source()?).await?;
    let mut newer = Vec::new();
    for (name, level) in &args.newest {
        let served = served(&client, name).await?;
        if served > *level {
            newer.push(format!("  {name}: the cluster has level {served}, and the older release has level {level}"));
        }
    }
    if newer.is_empty() {
        return print("no definition is newer\n");
    }
    bail!(
        "refused, and nothing was changed: an older definition would remove fields from stored objects:\n{}\nEnd this \
         rollback: `kubectl delete secret -n NAMESPACE -l owner=helm,name=RELEASE,status=pending-rollback`. Then go back by `helm upgrade` \
         with the older chart, which leaves these CustomResourceDefinitions as they are",
        newer.join("\n")
    )
}

/// Returns the level of a definition that the cluster serves. A definition without a level, or that is missing, has the
/// level 0.
async fn served(client: &Client, name: &str) -> anyhow::Result<u32> {
    let all: Api<CustomResourceDefinition> = Api::all(client.clone());
    let found = all.get_metadata_opt(name).await;
    let found = found.with_context(|| format!("cannot read the CustomResourceDefinition {name}"))?;
    let level = found.and_then(|found| found.metadata.annotations?.get(CRD_LEVEL)?.parse().ok());
    Ok(level.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_name_and_a_number() {
        assert_eq!(leveled("a.b=2"), Ok(("a.b".to_owned(), 2)));
        assert!(leveled("a.b").is_err() && leveled("a.b=x").is_err());
    }
}
