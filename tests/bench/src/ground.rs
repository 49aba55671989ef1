//! The cluster that a scenario runs on.
//!
//! Takes which one; yields accounts on it and the requests of the contenders as they are answered. It outlives its rounds.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use oarlock_bed::accounts::Account;
use oarlock_bed::audit::{self, Audit};
use oarlock_bed::control_plane::{self, ControlPlane};
use oarlock_bed::install::{self, Way};

use crate::arguments::On;
use crate::children::{Dropped, manifests, manifests_for, manifests_with_flows};
use crate::requests::Request;
use crate::served_sim::ServedSim;

/// A cluster with everything installed that `oarlock manifests` prints.
pub(crate) enum Ground {
    /// etcd and kube-apiserver. The store waits for the disk.
    Real(Arc<ControlPlane>),
    /// The API in memory, served by this process.
    Sim(ServedSim),
}

impl Ground {
    /// Starts one; a real one logs as `audit` says.
    ///
    /// # Errors
    /// If it cannot be started or furnished.
    pub(crate) async fn start(on: On, audit: Audit) -> anyhow::Result<Self> {
        if on == On::Sim {
            return Ok(Self::Sim(ServedSim::start().await?));
        }
        let options = control_plane::Options { durable_store: true, audit, ..control_plane::Options::default() };
        let plane = control_plane::start(options).await?;
        install::install(&plane.client(Account::Admin).await?, &manifests().await?, Way::Apply).await?;
        Ok(Self::Real(Arc::new(plane)))
    }

    /// A real one that logs what the contenders ask for, whose account both have.
    ///
    /// # Errors
    /// If it cannot be started or furnished.
    pub(crate) async fn for_contenders(on: On) -> anyhow::Result<Self> {
        Self::start(on, Audit::RequestsOf(vec![Account::Host])).await
    }

    /// One for JobFlows and DaemonJobs: a real one runs the controllers of Jobs.
    ///
    /// # Errors
    /// If it cannot be started or furnished.
    pub(crate) async fn for_flows(on: On) -> anyhow::Result<Self> {
        let controllers = vec![
            control_plane::JOB,
            control_plane::TTL_AFTER_FINISHED,
            control_plane::GARBAGE_COLLECTOR,
            control_plane::POD_GARBAGE_COLLECTOR,
            control_plane::NAMESPACE,
        ];
        // With its own limits the controller manager would be what is measured.
        let flags = ["--kube-api-qps=500", "--kube-api-burst=1000", "--concurrent-job-syncs=20"];
        let ground = match on {
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
        install::install(&ground.client(Account::Admin).await?, &manifests_with_flows().await?, way).await?;
        Ok(ground)
    }

    /// Installs what the grants of these plugins need besides.
    ///
    /// # Errors
    /// If the server refuses a document.
    pub(crate) async fn install(&self, dropped: Dropped) -> anyhow::Result<()> {
        let way = if matches!(self, Self::Real(_)) { Way::Apply } else { Way::CreateMissing };
        install::install(&self.client(Account::Admin).await?, &manifests_for(dropped).await?, way).await
    }

    /// The real control plane.
    ///
    /// # Errors
    /// If this is the API in memory.
    pub(crate) fn plane(&self) -> anyhow::Result<&Arc<ControlPlane>> {
        match self {
            Self::Real(plane) => Ok(plane),
            Self::Sim(_) => anyhow::bail!("this scenario needs etcd and kube-apiserver: leave --on sim out"),
        }
    }

    /// A client of `account`; in memory all are the same.
    ///
    /// # Errors
    /// If the client cannot be made.
    pub(crate) async fn client(&self, account: Account) -> anyhow::Result<kube::Client> {
        match self {
            Self::Real(plane) => plane.client(account).await,
            Self::Sim(sim) => Ok(kube::Client::new(sim.cluster.service(), "default")),
        }
    }

    /// How a contender reaches the cluster: with the account of the host.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn kubeconfig(&self) -> anyhow::Result<PathBuf> {
        match self {
            Self::Real(plane) => plane.kubeconfig(Account::Host),
            Self::Sim(sim) => Ok(sim.kubeconfig.clone()),
        }
    }

    /// The process id of the API server, where it is a process of its own.
    pub(crate) fn api_server(&self) -> Option<u32> {
        match self {
            Self::Real(plane) => Some(plane.api_server_id()),
            Self::Sim(_) => None,
        }
    }

    /// The requests of contenders from now on.
    ///
    /// # Errors
    /// If the audit log cannot be read.
    pub(crate) fn tail(&self) -> anyhow::Result<Tail> {
        Ok(match self {
            Self::Real(plane) => Tail::Audit(plane.audit_tail()?),
            Self::Sim(sim) => Tail::Proxy(sim.count()),
        })
    }

    /// The requests that a contender made since the last call with this tail.
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

/// How far the requests were read.
pub(crate) enum Tail {
    /// In the audit log.
    Audit(audit::Tail),
    /// Among the writes that the proxy counted.
    Proxy(usize),
}
