//! `oarlock manifests`: prints the documents that a cluster needs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{ArgGroup, Args, ValueEnum};
use oarlock_api::HostAccount;
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::names::is_dns_label;

use super::exports::parse_registry;
use super::output::{json, print};
use super::text_file::read_grants;
use crate::manifests::{
    DataPlace, Deployed, Egress, GrantedAccess, Impersonation, KnownKinds, PluginSource, PodPolicies, SHIPPED_GRANTS,
    as_json, deployment, flow_manifests_with, grant_manifests, manifests_with, ops_manifests, page_log_manifests,
    page_manifests, pinned, rest_manifests,
};

const EXAMPLES: &str = "\
Examples:
  oarlock manifests | kubectl apply -f -
      install namespace, CRDs, admission policies, ServiceAccount and roles, for Replace in every namespace; then run the host with
      that account
  oarlock manifests --grants grants.yaml | kubectl apply -f -
      the same with the roles that these grants need: reads in every namespace, writes only in the namespaces of each grant
  oarlock manifests --grants grants.yaml --bind team-a --bind team-b
      name the namespaces if a grant has `namespaces: [team-*]`, because each namespace needs its own role binding
  kubectl get crds -o json > crds.json && oarlock manifests --grants grants.yaml --crds crds.json
      describe the custom resources that a grant names
  oarlock manifests --grants grants.yaml --only-grants > granted.yaml
      only what the grants add, for `helm upgrade --set-file grants=granted.yaml`
  oarlock manifests --grants grants.yaml --flows --bind team-a | kubectl apply -f -
      the same with JobFlow, JobTemplate and DaemonJob; the host may create Jobs only in team-a. Without --bind it may create Jobs in
      every namespace and on any node, so its account is as powerful as a cluster admin
  oarlock manifests --grants grants.yaml --ops | kubectl apply -f -
      the same with OpsJob; only cluster admins may create OpsJobs until you bind the role oarlock-ops-operator
  oarlock manifests --grants grants.yaml --ops --rest --deployment registry.example/oarlock:0.1.0 | kubectl apply -f -
      the same with the REST API, with the certificate in the Secret oarlock-rest-tls:
      kubectl -n oarlock-system create secret tls oarlock-rest-tls --cert FILE --key FILE
  oarlock manifests --grants grants.yaml --tasks-egress 10.0.0.0/8
      let checks on nodes connect to these addresses; without the flag they connect to nothing
  oarlock manifests --deployment registry.example/oarlock:0.1.0 --pin replace.wasm | kubectl apply -f -
      install the host too, and grant only to this file, which is /plugins/replace.wasm in the image
  oarlock manifests --deployment registry.example/oarlock:0.1.0 --pin replace.wasm --plugins-from configmap/oarlock-plugins
      the same with the plugins in a ConfigMap: kubectl -n oarlock-system create configmap oarlock-plugins --from-file DIR";

/// The note if the host may create Jobs in every namespace.
const EVERYWHERE: &str = "note: the host may create Jobs in every namespace, so its account is as powerful as a cluster admin; \
                          name its namespaces with `--bind NAMESPACE` to limit it";

/// Arguments of `oarlock manifests`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group(ArgGroup::new("prints_grants").args(["deployment", "only_grants"])))]
pub(crate) struct ManifestsArgs {
    /// Grants of the plugins, whose roles are printed [default: Replace, in every namespace]
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Print only what the grants add, for the value `grants` of the Helm chart
    #[arg(long, requires = "grants", conflicts_with_all = ["flows", "ops", "deployment", "guard_holds", "no_guard_pod_writes"])]
    only_grants: bool,
    /// A namespace that a pattern in the grants matches, and with --flows also one in which the host makes Jobs; can be
    /// repeated
    #[arg(long, value_name = "NAMESPACE")]
    bind: Vec<String>,
    /// Namespace of the host's account, lease and pods
    #[arg(long, value_name = "NAMESPACE", default_value_t = HostAccount::default().namespace, value_parser = label)]
    namespace: String,
    /// ServiceAccount of the host in that namespace; the roles are bound to it, and the policies apply to it
    #[arg(long, value_name = "NAME", default_value_t = HostAccount::default().name, value_parser = label)]
    account: String,
    /// Namespace of the accounts of plugins whose grants have `identity`; give the host the same namespace
    #[arg(long, value_name = "NAMESPACE", default_value_t = HostAccount::default().plugin_accounts, value_parser = label)]
    plugin_accounts_namespace: String,
    /// The rights by which the host acts as these accounts: constrained, or legacy for API servers before 1.36, whose
    /// verb `impersonate` covers every request as the account
    #[arg(long, value_name = "WAY", default_value = "constrained")]
    impersonation: Impersonation,
    /// CustomResourceDefinitions of kinds in the grants, as YAML or JSON; can be repeated
    #[arg(long, value_name = "FILE")]
    crds: Vec<PathBuf>,
    /// Add JobFlow, JobTemplate and DaemonJob: their kinds, policies and roles. The host may then make Jobs in the
    /// namespaces of --bind, or in every namespace
    #[arg(long)]
    flows: bool,
    /// Add OpsJob: its kind, its namespace oarlock-ops, its policies, and a role for users who may create OpsJobs
    #[arg(long)]
    ops: bool,
    /// Addresses that checks on nodes may connect to, `all` or a CIDR; can be repeated [default: none]
    #[arg(long, value_name = "CIDR")]
    tasks_egress: Vec<Egress>,
    /// Leave out the admission policy that limits how the host's account changes pods. The policy costs the API server
    /// some time at each update of a pod where the account may patch pods
    #[arg(long, alias = "no-pod-policies")]
    no_guard_pod_writes: bool,
    /// Add the admission policy that lets only the host write holds of pods, for hosts of earlier versions, which do
    /// not prove their holds
    #[arg(long)]
    guard_holds: bool,
    /// Also print the host as a Deployment of this image
    #[arg(long, value_name = "IMAGE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    deployment: Option<String>,
    /// A component file to pin its plugin's grant to, instead of any component of that name; can be repeated
    #[arg(long, value_name = "FILE", requires = "prints_grants")]
    pin: Vec<PathBuf>,
    /// The plugins of that Deployment: configmap/NAME, pvc/NAME or image/REFERENCE [default: those in its image]
    #[arg(long, value_name = "SOURCE", requires = "deployment")]
    plugins_from: Option<PluginSource>,
    /// Place for the files of OpsJobs: pvc/NAME, with which the Deployment has one replica, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "PLACE", requires = "deployment", requires = "ops")]
    data: Option<DataPlace>,
    /// Secret with variables for the bucket of that Deployment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    /// OARLOCK_ARTEFACTS_ENDPOINT, OARLOCK_ARTEFACTS_REGION
    #[arg(long, value_name = "SECRET", requires = "data", value_parser = label)]
    data_secret: Option<String>,
    /// Secret whose `url` is the address of the history of OpsJobs, postgres://USER:PASSWORD@HOST/DATABASE [default:
    /// beside the files of --data pvc/NAME; otherwise there is no history]
    #[arg(long, value_name = "SECRET", requires = "deployment", requires = "ops", requires = "cluster_id", value_parser = label)]
    history_secret: Option<String>,
    /// Id of the cluster. OpsJobs name it, and clusters that share a history are told apart by it [default: local]
    #[arg(long, value_name = "ID", requires = "deployment", requires = "ops", value_parser = label)]
    cluster_id: Option<String>,
    /// Registry to which that Deployment copies images for OpsJobs of the type exportimage
    #[arg(long, value_name = "HOST[:PORT]", requires = "deployment", requires = "ops", value_parser = parse_registry)]
    export_registry: Option<String>,
    /// Another host to which that registry may redirect for a token or an upload; can be repeated
    #[arg(long = "export-host", value_name = "HOST[:PORT]", requires = "export_registry", value_parser = parse_registry)]
    export_hosts: Vec<String>,
    /// Secret with the credentials of that registry, as `kubectl create secret docker-registry` creates it; the host
    /// may read it
    #[arg(long, value_name = "SECRET", requires = "export_registry", value_parser = label)]
    export_secret: Option<String>,
    /// ConfigMap whose `ca.crt` holds the CA certificates for that registry, for the registries of the images, and for
    /// the bucket
    #[arg(long, value_name = "CONFIGMAP", requires = "deployment", value_parser = label)]
    ca: Option<String>,
    /// Add the server of the REST API of OpsJobs: its account and rights, a Service, and the network policy of the
    /// server. With --deployment, the server itself too. Its certificate is in this Secret of its namespace, as
    /// `kubectl create secret tls` creates it. With --data pvc/NAME, the server is a second container of the host's pod
    #[arg(long, value_name = "SECRET", requires = "ops", num_args = 0..=1, default_missing_value = "oarlock-rest-tls", value_parser = label)]
    rest: Option<String>,
    /// Let that server serve the pages of jobs for browsers too, and give it the rights to read what they show
    #[arg(long, requires = "rest")]
    web: bool,
    /// Let these pages show the last lines of the logs of failed Jobs, and give the server the right to read logs
    #[arg(long, requires = "web")]
    web_logs: bool,
    /// Secret for the server instead of --data-secret; its keys only need permission to read
    #[arg(long, value_name = "SECRET", requires = "rest", requires = "data_secret", value_parser = label)]
    server_data_secret: Option<String>,
    /// Secret for the server instead of --history-secret; the role in its `url` reads jobs and writes requests, as
    /// docs/install.md describes
    #[arg(long, value_name = "SECRET", requires = "rest", requires = "history_secret", value_parser = label)]
    server_history_secret: Option<String>,
    /// Output format; json is one list
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: DocumentFormat,
}

/// The format of documents for a cluster.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DocumentFormat {
    /// As YAML documents.
    Yaml,
    /// As one list in JSON.
    Json,
}

/// Prints YAML documents in the given format.
pub(crate) fn print_documents(yaml: &str, format: DocumentFormat) -> anyhow::Result<ExitCode> {
    match format {
        DocumentFormat::Yaml => print(yaml),
        DocumentFormat::Json => print(&json(&as_json(yaml)?)?),
    }
}

/// Prints the documents.
pub(crate) fn run(args: &ManifestsArgs) -> anyhow::Result<ExitCode> {
    let (text, grants) = match &args.grants {
        Some(path) => read_grants(path)?,
        None => (SHIPPED_GRANTS.to_owned(), oarlock_wasm::parse_grants(SHIPPED_GRANTS)?),
    };
    let mut kinds = KnownKinds::built_in();
    args.crds.iter().try_for_each(|path| learn(&mut kinds, path))?;
    let policies = PodPolicies { guards_holds: args.guard_holds, guards_pod_writes: !args.no_guard_pod_writes };
    let host = HostAccount {
        namespace: args.namespace.clone(),
        name: args.account.clone(),
        plugin_accounts: args.plugin_accounts_namespace.clone(),
    };
    let bind = bound_for_grants(args, &grants);
    let (tasks_egress, impersonation) = (args.tasks_egress.clone(), args.impersonation);
    let access = GrantedAccess { grants, kinds, bind, host, tasks_egress, impersonation };
    if args.only_grants {
        return print_documents(&grant_manifests(&access, &pin_all(text, &args.pin)?)?, args.output);
    }
    let mut printed = manifests_with(&access, policies)?;
    if args.flows {
        printed = printed + "---\n" + &flow_manifests_with(&access.host, &args.bind)?;
        if args.bind.is_empty() {
            eprintln!("{EVERYWHERE}");
        }
    }
    if args.ops {
        printed = printed + "---\n" + &ops_manifests(&access.host);
    }
    if args.rest.is_some() {
        printed = printed + "---\n" + &rest_manifests(&access.host);
    }
    if args.web {
        printed = printed + "---\n" + &page_manifests(&access.host);
    }
    if args.web_logs {
        printed = printed + "---\n" + &page_log_manifests(&access.host);
    }
    if let Some(image) = &args.deployment {
        printed = printed + "---\n" + &deployed(args, image, text, &access.host)?;
    }
    print_documents(&printed, args.output)
}

/// Returns the Deployment of the host with this image and these grants, and the documents that belong to it.
fn deployed(args: &ManifestsArgs, image: &str, grants: String, host: &HostAccount) -> anyhow::Result<String> {
    if args.grants.is_none() && args.pin.is_empty() {
        bail!(
            "the shipped grants are for any file that calls itself `replace`: add `--pin FILE` with the replace.wasm of \
             the image, which has it as /plugins/replace.wasm, or give grants of your own by `--grants FILE`"
        );
    }
    if !names_content(image) {
        eprintln!(
            "warning: {image} has no digest, so whoever may push to its registry decides what runs as the host and, where grants \
             have tasks, as root on nodes: give IMAGE@sha256:..., as `docker buildx imagetools inspect {image}` prints it"
        );
    }
    let documents = deployment(&Deployed {
        image,
        grants: &pin_all(grants, &args.pin)?,
        plugins: args.plugins_from.as_ref(),
        data: args.data.as_ref(),
        data_secret: args.data_secret.as_deref(),
        history_secret: args.history_secret.as_deref(),
        cluster_id: args.cluster_id.as_deref(),
        export_registry: args.export_registry.as_deref(),
        export_hosts: &args.export_hosts,
        export_secret: args.export_secret.as_deref(),
        ca: args.ca.as_deref(),
        rest: args.rest.as_deref(),
        web: args.web,
        web_logs: args.web_logs,
        server_data_secret: args.server_data_secret.as_deref(),
        server_history_secret: args.server_history_secret.as_deref(),
        host,
    })?;
    Ok(documents)
}

/// Returns true for an image with a digest, which fixes its content. Anyone who may push can move a tag.
fn names_content(image: &str) -> bool {
    let digest = image.rsplit_once("@sha256:").map(|(_, digest)| digest);
    digest.is_some_and(|digest| digest.len() == 64 && digest.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Returns the namespaces of `--bind` to bind grants to. With `--flows`, the other namespaces are only for Jobs.
fn bound_for_grants(args: &ManifestsArgs, grants: &[Grant]) -> Vec<String> {
    let is_theirs = |name: &&String| !args.flows || grants.iter().any(|grant| grant.allows_namespace(name));
    args.bind.iter().filter(is_theirs).cloned().collect()
}

/// Parses a name that is a DNS label.
pub(super) fn label(text: &str) -> Result<String, String> {
    let known = is_dns_label(text).then(|| text.to_owned());
    known.ok_or_else(|| "give a name of lower-case letters, digits and `-`".to_owned())
}

/// Returns the grants with each listed file's plugin pinned to the component in the file.
fn pin_all(mut grants: String, files: &[PathBuf]) -> anyhow::Result<String> {
    let mut pins: BTreeMap<String, &Path> = BTreeMap::new();
    for file in files {
        let (plugin, digest) = identity(file)?;
        if let Some(other) = pins.get(&plugin) {
            bail!(
                "both {} and {} are of plugin `{plugin}`, and its grant is for one component: leave one `--pin` out",
                other.display(),
                file.display()
            );
        }
        grants = pinned(&grants, &plugin, &digest).with_context(|| cannot_pin(file))?;
        pins.insert(plugin, file);
    }
    Ok(grants)
}

/// Reads the name and the digest of the plugin in a file.
fn identity(file: &Path) -> anyhow::Result<(String, String)> {
    let bytes = std::fs::read(file).with_context(|| cannot_pin(file))?;
    let facts = oarlock_wasm::inspect(&bytes).with_context(|| cannot_pin(file))?;
    let manifest = facts.manifest.context("it has no manifest").with_context(|| cannot_pin(file))?;
    Ok((manifest.name, facts.digest))
}

fn cannot_pin(file: &Path) -> String {
    format!("cannot pin the grants to {}", file.display())
}

pub(super) fn learn(kinds: &mut KnownKinds, path: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the CustomResourceDefinitions {}", path.display()))?;
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text)
        .with_context(|| format!("the CustomResourceDefinitions {} are not YAML", path.display()))?;
    documents.iter().for_each(|document| kinds.add(document));
    Ok(())
}
