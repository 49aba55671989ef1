//! Access to the jobs of a cluster for the user's commands: the arguments that name jobs, and the requests that read
//! and create them.

mod cluster_error;
pub(super) mod flows;
pub(super) mod follow;
pub(super) mod get;
pub(crate) mod names;
pub(super) mod ops;
mod stored;
mod terminal;
pub(super) mod watch;

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, ObjectList, PostParams};
use oarlock_api::{OARLOCK_GROUP, OperationJob};
use oarlock_kube::transport::client::connect;
use oarlock_view::JobView;

use self::cluster_error::{Asked, explained};
use self::follow::{Followed, RecordsOf, read};
use self::stored::{StoredJob, StoredRecord};
use super::host::ClusterArgs;

/// The number of objects that one list request asks for.
const PAGE: u32 = 500;

/// The flags of the cluster and its namespace, named as kubectl names them.
#[derive(Clone, Debug, Args)]
pub(super) struct NamespaceArgs {
    /// Namespace [default: the namespace of the context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl NamespaceArgs {
    /// Returns the namespace, if the user named one.
    pub(super) fn named(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}

/// Reads a list page by page. Returns the results of `pick` for its items.
pub(super) async fn every_page<K: Clone, T>(
    read: impl AsyncFn(&ListParams) -> kube::Result<ObjectList<K>>,
    pick: impl Fn(K) -> Option<T>,
) -> kube::Result<Vec<T>> {
    let mut picked = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = read(&page).await?;
        picked.extend(list.items.into_iter().filter_map(&pick));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(picked),
        }
    }
}

/// A client for the jobs of one namespace.
#[derive(Clone)]
pub(super) struct JobClient {
    client: kube::Client,
    server: String,
    namespace: String,
}

impl JobClient {
    /// Makes a client for the cluster that the arguments name. Sends no request yet.
    pub(super) async fn new(args: NamespaceArgs) -> anyhow::Result<Self> {
        let (client, server) = connect(&args.cluster.source()?).await?;
        let namespace = args.namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        Ok(Self { client, server, namespace })
    }

    /// Makes a client from a connected one. Errors call the cluster `server`.
    #[cfg(feature = "dev")]
    pub(super) fn of(client: kube::Client, server: &str, namespace: &str) -> Self {
        Self { client, server: server.to_owned(), namespace: namespace.to_owned() }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns this client for the jobs of another namespace.
    pub(super) fn in_namespace(self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self }
    }

    /// Returns the underlying client.
    pub(super) fn raw(&self) -> &kube::Client {
        &self.client
    }

    fn jobs(&self) -> Api<StoredJob> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn refused(&self, cause: kube::Error, verb: &'static str, name: Option<&str>) -> anyhow::Error {
        let Self { namespace, server, .. } = self;
        explained(cause, &Asked { verb, kinds: "OperationJobs", short: "opj", name, namespace, server })
    }

    /// Reads one job with its records. Without permission to read records, returns the job without them.
    async fn view(&self, name: &str) -> anyhow::Result<JobView> {
        let (job, records) = read(self, name).await?;
        Ok(self.shown(&job, records.iter()))
    }

    /// Lists the jobs of the namespace, or of all namespaces.
    async fn list(&self, all_namespaces: bool) -> anyhow::Result<Vec<JobView>> {
        let api = if all_namespaces { Api::<StoredJob>::all(self.client.clone()) } else { self.jobs() };
        let view = |stored: StoredJob| Some(JobView::new(&stored.0, &[]));
        let listed = every_page(async |page: &ListParams| api.list(page).await, view).await;
        listed.map_err(|cause| self.refused(cause, "list", None))
    }

    /// Creates a job. Returns the job as the cluster stores it.
    pub(super) async fn create(&self, job: OperationJob) -> anyhow::Result<OperationJob> {
        self.post(job, &PostParams::default()).await
    }

    /// Sends the creation of a job as a dry run. Returns the answer of the API server, which stores nothing.
    pub(super) async fn try_create(&self, job: OperationJob) -> anyhow::Result<OperationJob> {
        self.post(job, &PostParams { dry_run: true, ..PostParams::default() }).await
    }

    async fn post(&self, job: OperationJob, how: &PostParams) -> anyhow::Result<OperationJob> {
        let name = job.metadata.name.clone();
        let created = self.jobs().create(how, &StoredJob(job)).await;
        created.map(|stored| stored.0).map_err(|cause| self.refused(cause, "create", name.as_deref()))
    }
}

impl Followed for JobClient {
    type Object = StoredJob;
    type Record = StoredRecord;
    type View = JobView;

    fn objects(&self) -> Api<StoredJob> {
        self.jobs()
    }

    fn records(&self) -> Api<StoredRecord> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn records_of(&self, object: &StoredJob) -> Option<RecordsOf> {
        object.0.status.as_ref()?.records.as_ref()?;
        Some(RecordsOf::Labels(format!("{OARLOCK_GROUP}/job-uid={}", object.0.metadata.uid.as_ref()?)))
    }

    fn shown<'a>(&self, object: &StoredJob, records: impl Iterator<Item = &'a StoredRecord>) -> JobView {
        JobView::new(&object.0, records.map(|record| &record.0))
    }

    fn explained(&self, cause: kube::Error, verb: &'static str, name: &str) -> anyhow::Error {
        self.refused(cause, verb, Some(name))
    }
}

pub(super) fn now() -> Timestamp {
    Timestamp::now()
}

/// Prints one line of a running watch. Returns false if the reader of the output has gone, so that the command ends.
pub(super) fn print_line(line: &str) -> anyhow::Result<bool> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}
