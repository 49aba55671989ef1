//! Jobs of a cluster for the commands of people: the arguments that name them, and the requests that read and create them.

mod cluster_error;
pub(super) mod follow;
pub(super) mod get;
mod stored;
mod terminal;
pub(super) mod watch;

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, PostParams};
use oarlock_api::{OARLOCK_GROUP, OperationJob, OperationRecord};
use oarlock_kube::transport::client::connect;
use oarlock_view::JobView;

use self::cluster_error::{Asked, explained};
use self::stored::{StoredJob, StoredRecord};
use super::host::ClusterArgs;

/// Jobs that one list request asks for.
const PAGE: u32 = 500;

/// The cluster and the namespace in it, as kubectl takes them.
#[derive(Debug, Args)]
pub(super) struct NamespaceArgs {
    /// Namespace [default: that of the context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl NamespaceArgs {
    /// The namespace, where it is named.
    pub(super) fn named(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}

/// The name of a job: `NAME`, or `opj/NAME` as kubectl writes it.
pub(super) fn job_name(text: &str) -> Result<String, String> {
    let (kind, name) = text.split_once('/').unwrap_or(("opj", text));
    let kind = kind.split('.').next().unwrap_or_default().to_lowercase();
    if !["opj", "operationjob", "operationjobs"].contains(&kind.as_str()) {
        return Err(format!("{kind:?} is no kind of job: write opj/{name}"));
    }
    if name.is_empty() || name.contains('/') {
        return Err("write a name, or opj/NAME".to_owned());
    }
    Ok(name.to_owned())
}

/// The jobs of one namespace.
#[derive(Clone)]
pub(super) struct JobClient {
    client: kube::Client,
    server: String,
    namespace: String,
}

impl JobClient {
    /// The client for the cluster that the arguments name. It sends nothing yet.
    pub(super) async fn new(args: NamespaceArgs) -> anyhow::Result<Self> {
        let (client, server) = connect(&args.cluster.source()?).await?;
        let namespace = args.namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        Ok(Self { client, server, namespace })
    }

    /// The jobs of a namespace, by a client that is there already; `server` is what errors call its cluster.
    pub(super) fn of(client: kube::Client, server: &str, namespace: &str) -> Self {
        Self { client, server: server.to_owned(), namespace: namespace.to_owned() }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The same for the jobs of another namespace.
    pub(super) fn in_namespace(self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self }
    }

    /// The client itself.
    pub(super) fn raw(&self) -> &kube::Client {
        &self.client
    }

    fn jobs(&self) -> Api<StoredJob> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn records(&self) -> Api<StoredRecord> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn explained(&self, cause: kube::Error, verb: &'static str, name: Option<&str>) -> anyhow::Error {
        explained(cause, &Asked { verb, name, namespace: &self.namespace, server: &self.server })
    }

    /// One job as it is stored.
    async fn job(&self, name: &str) -> anyhow::Result<OperationJob> {
        let found = self.jobs().get(name).await;
        found.map(|stored| stored.0).map_err(|cause| self.explained(cause, "get", Some(name)))
    }

    /// One job with its records. Whoever may not read records sees the job without them.
    async fn view(&self, name: &str) -> anyhow::Result<JobView> {
        let job = self.job(name).await?;
        let records = match records_of(&job) {
            Some(selector) => match self.records().list(&ListParams::default().labels(&selector)).await {
                Ok(list) => list.items.into_iter().map(|stored| stored.0).collect(),
                Err(kube::Error::Api(status)) if status.is_forbidden() => Vec::new(),
                Err(cause) => return Err(self.explained(cause, "list the records of", Some(name))),
            },
            None => Vec::<OperationRecord>::new(),
        };
        Ok(JobView::new(&job, &records))
    }

    /// All jobs of the namespace, or of all.
    async fn list(&self, all_namespaces: bool) -> anyhow::Result<Vec<JobView>> {
        let api = if all_namespaces { Api::<StoredJob>::all(self.client.clone()) } else { self.jobs() };
        let mut jobs = Vec::new();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = api.list(&page).await.map_err(|cause| self.explained(cause, "list", None))?;
            jobs.extend(list.items.iter().map(|stored| JobView::new(&stored.0, &[])));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(jobs),
            }
        }
    }

    /// Creates a job, and yields it as the cluster stores it.
    pub(super) async fn create(&self, job: OperationJob) -> anyhow::Result<OperationJob> {
        self.post(job, &PostParams::default()).await
    }

    /// Has the API server say what it would answer to the creation of a job. Nothing is stored.
    pub(super) async fn try_create(&self, job: OperationJob) -> anyhow::Result<OperationJob> {
        self.post(job, &PostParams { dry_run: true, ..PostParams::default() }).await
    }

    async fn post(&self, job: OperationJob, how: &PostParams) -> anyhow::Result<OperationJob> {
        let name = job.metadata.name.clone();
        let created = self.jobs().create(how, &StoredJob(job)).await;
        created.map(|stored| stored.0).map_err(|cause| self.explained(cause, "create", name.as_deref()))
    }
}

/// The selector of a job's records, where it has any.
fn records_of(job: &OperationJob) -> Option<String> {
    job.status.as_ref()?.records.as_ref()?;
    Some(format!("{OARLOCK_GROUP}/job-uid={}", job.metadata.uid.as_ref()?))
}

fn now() -> Timestamp {
    Timestamp::now()
}

/// Prints one line of a running watch. False once its reader has gone: nothing is left to do then, and nobody to tell.
fn print_line(line: &str) -> anyhow::Result<bool> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_with_and_without_its_kind() {
        for text in ["web", "opj/web", "OperationJob/web", "operationjobs.apps.kusionstack.io/web"] {
            assert_eq!(job_name(text).as_deref(), Ok("web"), "{text}");
        }
        for text in ["pod/web", "opj/", "opj/a/b", ""] {
            assert!(job_name(text).is_err(), "{text}");
        }
    }
}
