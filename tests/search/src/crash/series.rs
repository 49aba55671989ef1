//! The hosts of one run, one after the other, behind one counting interceptor.
//!
//! Takes an in-memory cluster and troubles; yields a new host after each kill, as another process would be. May not help the
//! host: a new host gets at most the name of the one before.

use std::sync::Arc;

use kube::Client;
use oarlock_sim::{Cluster, Delays};
use oarlock_support::faults::Plan;
use oarlock_support::interception::{Interceptor, WriteRecord};
use oarlock_wasm::Plugins;

use super::script::{Kind, Trouble};
use oarlock_scenarios::host_requests::{Life, Line, Lives, Upstream, in_memory};
use oarlock_scenarios::killable_host::{Birth, Mortal, Serves};
use oarlock_scenarios::mishap::Mishap;
use oarlock_scenarios::variant::Variant;

/// The settings that the hosts of a run share.
pub struct SeriesSetup {
    /// The cluster of the hosts.
    pub cluster: Cluster,
    /// The plugins of the hosts.
    pub plugins: Plugins,
    /// The kinds that the hosts serve.
    pub serves: Serves,
    /// The troubles, in the order of the writes.
    pub troubles: Vec<Trouble>,
    /// The delays of requests and watches.
    pub delays: Option<Delays>,
    /// True if each host has its own name and waits for the lease.
    pub fails_over: bool,
    /// The bug of the hosts, if any.
    pub variant: Option<Arc<dyn Variant>>,
    /// The mishap on the connection, if any.
    pub mishap: Option<Mishap>,
}

/// The hosts of a run.
pub struct HostSeries {
    setup: SeriesSetup,
    interceptor: Interceptor,
    lives: Lives,
    host: Option<Mortal>,
    /// The number of hosts so far.
    begun: usize,
}

impl HostSeries {
    /// Starts the first host.
    ///
    /// # Errors
    /// If two troubles are at the same write.
    pub fn begin(setup: SeriesSetup) -> anyhow::Result<Self> {
        let lives = Lives::default();
        let faults = setup.troubles.iter().map(|trouble| trouble.fault(&lives));
        let interceptor = Interceptor::new(Plan::new(faults)?, &[]);
        let mut series = Self { setup, interceptor, lives, host: None, begun: 0 };
        series.start();
        Ok(series)
    }

    fn start(&mut self) {
        let SeriesSetup { cluster, plugins, serves, delays, fails_over, variant, mishap, .. } = &self.setup;
        let server = delays.map_or_else(|| cluster.service(), |delays| cluster.delayed(delays));
        let upstream = Upstream::new(in_memory(server), self.interceptor.clone(), mishap.clone());
        let line = Line { life: self.lives.begin(), upstream, variant: variant.clone() };
        // Every life has the same name, so that a restart needs no wait for the lease. With failover each life has its own name.
        let number = if *fails_over { self.begun } else { 0 };
        let clock = cluster.clone();
        self.host = Some(Mortal::start(Birth {
            identity: format!("host-{number}"),
            client: Client::new(line, "default"),
            clock: Arc::new(move || clock.now()),
            plugins: plugins.clone(),
            serves: *serves,
        }));
        self.begun += 1;
    }

    /// Kills the present host.
    ///
    /// # Errors
    /// If the host had panicked.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.lives.present().end();
        match self.host.take() {
            Some(host) => host.kill().await,
            None => Ok(()),
        }
    }

    /// Kills the present host and starts another one, after the time that the trouble demands.
    ///
    /// # Errors
    /// If the killed host had panicked.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill().await?;
        let reached = self.interceptor.count();
        let mut kills = self.setup.troubles.iter().filter(|trouble| matches!(trouble.kind, Kind::Kill(_)));
        if let Some(trouble) = kills.rfind(|trouble| trouble.at <= reached) {
            tokio::time::sleep(trouble.down()).await;
        }
        self.start();
        Ok(())
    }

    /// Returns the life of the present host.
    #[must_use]
    pub fn present(&self) -> Life {
        self.lives.present()
    }

    /// Returns the interceptor that all hosts use.
    #[must_use]
    pub fn interceptor(&self) -> &Interceptor {
        &self.interceptor
    }

    /// Returns the writes so far, without those to the lease.
    #[must_use]
    pub fn acts(&self) -> Vec<WriteRecord> {
        self.interceptor.records().into_iter().filter(|write| !write.path.contains("/leases")).collect()
    }
}
