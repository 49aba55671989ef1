//! The hosts of one run, one after the other, on one wire that counts.
//!
//! Takes a cluster in memory and what goes wrong; yields a host that is there again after each kill, as another process
//! would be. May not help it: a host that comes has nothing but the name of the one before, if that.

use std::sync::Arc;

use kube::Client;
use oarlock_bed::faults::Plan;
use oarlock_bed::interception::{Interceptor, WriteRecord};
use oarlock_sim::{Cluster, Delays};
use oarlock_wasm::Plugins;

use super::host::{Birth, Mortal, Serves};
use super::line::{Life, Line, Lives, Wire, in_memory};
use super::mishap::Mishap;
use super::script::{Kind, Trouble};
use crate::variants::Variant;

/// What the hosts of a run have in common.
pub struct SeriesSetup {
    /// Where they are.
    pub cluster: Cluster,
    /// Their plugins.
    pub plugins: Plugins,
    /// What they serve.
    pub serves: Serves,
    /// What goes wrong, in the order of the writes.
    pub troubles: Vec<Trouble>,
    /// How late everything is for them.
    pub delays: Option<Delays>,
    /// Whether each has a name of its own, and waits for the lease.
    pub fails_over: bool,
    /// The bug that they have.
    pub variant: Option<Arc<dyn Variant>>,
    /// What strikes on the wire.
    pub mishap: Option<Mishap>,
}

/// The hosts of a run.
pub struct HostSeries {
    setup: SeriesSetup,
    interceptor: Interceptor,
    lives: Lives,
    host: Option<Mortal>,
    /// How many hosts there were.
    begun: usize,
}

impl HostSeries {
    /// Starts the first host.
    ///
    /// # Errors
    /// If two things go wrong at one write.
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
        let wire = Wire::new(in_memory(server), self.interceptor.clone(), mishap.clone());
        let line = Line { life: self.lives.begin(), wire, variant: variant.clone() };
        // The same name for every life, so that a restart costs no lease time, unless somebody else takes over.
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
    /// If it had panicked.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.lives.present().end();
        match self.host.take() {
            Some(host) => host.kill().await,
            None => Ok(()),
        }
    }

    /// Lets another host follow the one that was killed, after as long as the trouble says.
    ///
    /// # Errors
    /// If that had panicked.
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

    /// The life of the present host.
    #[must_use]
    pub fn present(&self) -> Life {
        self.lives.present()
    }

    /// What all of them speak through.
    #[must_use]
    pub fn interceptor(&self) -> &Interceptor {
        &self.interceptor
    }

    /// The writes so far but those to the lease.
    #[must_use]
    pub fn acts(&self) -> Vec<WriteRecord> {
        self.interceptor.records().into_iter().filter(|write| !write.path.contains("/leases")).collect()
    }
}
