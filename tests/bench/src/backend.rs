//! The cluster that a scenario runs on, real or in memory. It provides accounts and the requests of the contenders as they are
//! answered. It outlives the rounds of a scenario.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use oarlock_support::accounts::Account;
use oarlock_support::audit::{self, Audit};
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::install::{self, Way};

use crate::arguments::On;
use crate::children::{Dropped, manifests, manifests_for, manifests_with_flows};
use crate::requests::Request;
use crate::served_sim::ServedSim;

/// A cluster in which everything that `oarlock manifests` prints is installed.
pub(crate) enum Backend {
    /// A real etcd and kube-apiserver. etcd syncs every write to disk.
    Real(Arc<ControlPlane>),
    /// The in-memory API, served by this process.
    Sim(ServedSim),
}

impl Backend {
    /// Starts a cluster. A real API server logs requests as `audit` says.
    ///
    /// # Errors
    /// If the cluster cannot be started, or the server refuses an object.
    pub(crate) async fn start(on: On, audit: Audit) -> anyhow::Result<Self> {
        if on == On::Sim {
            return Ok(Self::Sim(ServedSim::start().await?));
        }
        let options = control_plane::Options { durable_store: true, audit, ..control_plane::Options::default() };
        let plane = control_plane::start(options).await?;
        install::install(&plane.client(Account::Admin).await?, &manifests().await?, Way::Apply).await?;
        Ok(Self::Real(Arc::new(plane)))
    }

    /// Starts a cluster for contenders. A real API server logs their requests; both contenders have the same account.
    ///
    /// # Errors
    /// If the cluster cannot be started, or the server refuses an object.
    pub(crate) async fn for_contenders(on: On) -> anyhow::Result<Self> {
        Self::start(on, Audit::RequestsOf(vec![Account::Host])).await
    }

    /// Starts a cluster for JobFlows and DaemonJobs. A real one runs the controllers of Jobs.
    ///
    /// # Errors
    /// If the cluster cannot be started, or the server refuses an object.
    pub(crate) async fn for_flows(on: On) -> anyhow::Result<Self> {
        let controllers = vec![
            control_plane::JOB,
            control_plane::TTL_AFTER_FINISHED,
            control_plane::GARBAGE_COLLECTOR,
            control_plane::POD_GARBAGE_COLLECTOR,
            control_plane::NAMESPACE,
        ];
        // With its default limits, the controller manager would be the bottleneck of the measurement.
        let flags = ["--kube-api-qps=500", "--kube-api-burst=1000", "--concurrent-job-syncs=20"];
        let backend = match on {
            On::Sim => Self::start(on, Audit::Off).await?,
            On::Real => {
                let options = control_plane::Options {
                    durable_store: true,
                    audit: Audit::RequestsOf(vec![Account::Host]),
                    controllers,
                    controller_manager_flags: flags.map(str::to_owned).into(),
                    ..control_plane::Options::default()
                };
                Self::Real(Arc::new(control_plane::start(options).await?))
            }
        };
        let way = if on == On::Real { Way::Apply } else { Way::CreateMissing };
        install::install(&backend.client(Account::Admin).await?, &manifests_with_flows().await?, way).await?;
        Ok(backend)
    }

    /// Installs the manifests for the grants of these plugins.
    ///
    /// # Errors
    /// If the server refuses a document.
    pub(crate) async fn install(&self, dropped: Dropped) -> anyhow::Result<()> {
        let way = if matches!(self, Self::Real(_)) { Way::Apply } else { Way::CreateMissing };
        install::install(&self.client(Account::Admin).await?, &manifests_for(dropped).await?, way).await
    }

    /// Returns the real control plane.
    ///
    /// # Errors
    /// If this is the in-memory API.
    pub(crate) fn plane(&self) -> anyhow::Result<&Arc<ControlPlane>> {
        match self {
            Self::Real(plane) => Ok(plane),
            Self::Sim(_) => anyhow::bail!("this scenario needs etcd and kube-apiserver: leave --on sim out"),
        }
    }

    /// Returns a client of `account`. On the in-memory API all accounts are the same.
    ///
    /// # Errors
    /// If the client cannot be made.
    pub(crate) async fn client(&self, account: Account) -> anyhow::Result<kube::Client> {
        match self {
            Self::Real(plane) => plane.client(account).await,
            Self::Sim(sim) => Ok(kube::Client::new(sim.cluster.service(), "default")),
        }
    }

    /// Returns the kubeconfig of a contender, with the account of the host.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn kubeconfig(&self) -> anyhow::Result<PathBuf> {
        match self {
            Self::Real(plane) => plane.kubeconfig(Account::Host),
            Self::Sim(sim) => Ok(sim.kubeconfig.clone()),
        }
    }

    /// Returns the process id of the API server, if it is a separate process.
    pub(crate) fn api_server(&self) -> Option<u32> {
        match self {
            Self::Real(plane) => Some(plane.api_server_id()),
            Self::Sim(_) => None,
        }
    }

    /// Returns a tail of the contenders' requests from now on.
    ///
    /// # Errors
    /// If the audit log cannot be read.
    pub(crate) fn tail(&self) -> anyhow::Result<Tail> {
        Ok(match self {
            Self::Real(plane) => Tail::Audit(plane.audit_tail()?),
            Self::Sim(sim) => Tail::Proxy(sim.count()),
        })
    }

    /// Returns the requests that a contender made since the last call with this tail.
    ///
    /// # Errors
    /// If the audit log cannot be read.
    pub(crate) fn more(&self, tail: &mut Tail) -> anyhow::Result<Vec<Request>> {
        match (self, tail) {
            (Self::Real(_), Tail::Audit(tail)) => {
                let of_contender = |found: &audit::Request| found.user == Account::Host.user();
                Ok(tail.more()?.into_iter().filter(of_contender).map(Request::from).collect())
            }
            (Self::Sim(sim), Tail::Proxy(skipped)) => {
                let writes = sim.writes(*skipped);
                *skipped += writes.len();
                Ok(writes)
            }
            _ => Err(anyhow::anyhow!("the tail is of another cluster")).context("cannot read the requests"),
        }
    }
}

/// The position up to which the requests were read.
pub(crate) enum Tail {
    /// A position in the audit log.
    Audit(audit::Tail),
    /// The number of writes that were read of those that the proxy counted.
    Proxy(usize),
}
