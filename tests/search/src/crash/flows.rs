//! Runs a JobFlow or a DaemonJob on the in-memory API, kills its host at one chosen write, and checks what must be true nevertheless.
//!
//! Takes a [`FlowScript`]; yields the writes and every property that did not hold, at any version of the object and its
//! children. May not help the host.

pub mod judge;
pub mod points;
pub mod subject;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use oarlock_sim::Delays;
use oarlock_sim::world::{History, SetKey, Version};
use oarlock_support::interception::WriteRecord;
use oarlock_wasm::Plugins;

use self::judge::judge;
use self::subject::Subject;
use super::script::{FAILOVER, Scripted, Trouble, late};
use super::series::{HostSeries, SeriesSetup};
use super::{LAST_WRITES, Outcome, QUIET, plugins, tell};
use oarlock_scenarios::flows::prepare;
use oarlock_scenarios::killable_host::Serves;
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::oracle::{self, Meddling};
use oarlock_scenarios::test_cluster::{Backend, TestCluster};
use oarlock_scenarios::variant::Variant;

/// The time limit of a flow. Every flow takes far less, kills included.
const ENDED: Duration = Duration::from_secs(180);
/// The time limit for effects after the end: a time to live that begins, and the status of a template.
const CLEANED_UP: Duration = Duration::from_secs(60);

/// The script of a run with flows.
#[derive(Clone)]
pub struct FlowScript {
    /// The object that is run.
    pub subject: Subject,
    /// True if the host that follows a killed host has another name and waits for the lease.
    pub fails_over: bool,
    /// The troubles, in the order of the writes.
    pub troubles: Vec<Trouble>,
    /// The delays of the host's requests and watches.
    pub delays: Option<Delays>,
    /// The seed of the simulated times and names.
    pub seed: u64,
    /// True if the run prints everything that happened.
    pub tells: bool,
    /// A known-bad host. `None` for a correct host.
    pub variant: Option<Arc<dyn Variant>>,
}

impl FlowScript {
    /// Returns a script without any trouble.
    #[must_use]
    pub fn of(subject: Subject) -> Self {
        Self { subject, fails_over: false, troubles: Vec::new(), delays: None, seed: 1, tells: false, variant: None }
    }

    /// Returns the time by which troubles delay the last writes.
    fn holds_up(&self) -> Duration {
        // Another leader takes over only after the lease of the killed host has expired.
        let leader = if self.fails_over { FAILOVER } else { Duration::ZERO };
        leader + self.troubles.iter().map(|trouble| trouble.holds_up()).sum::<Duration>()
    }
}

impl Scripted for FlowScript {
    fn run(self) -> anyhow::Result<Outcome> {
        // The flow has an operation that replaces a pod.
        let plugins = plugins(Mode::Evict)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.context("no runtime")?.block_on(async { FlowStage::set(self, plugins).await?.play().await })
    }

    fn title(&self) -> String {
        let Self { subject, fails_over, troubles, delays, .. } = self;
        let failover = if *fails_over { ", Failover" } else { "" };
        format!("{subject:?}{failover}{}, {troubles:?}", late(*delays))
    }

    fn subject(&self) -> String {
        let late = if self.delays.is_some() { ", late" } else { "" };
        let failover = if self.fails_over { ", Failover" } else { "" };
        format!("{:?}{failover}{late}", self.subject)
    }

    fn troubles(&self) -> &[Trouble] {
        &self.troubles
    }

    fn fails_over(&self) -> bool {
        self.fails_over
    }

    fn disturbed(&self, troubles: Vec<Trouble>, delays: Option<Delays>) -> Self {
        Self { troubles, delays, ..self.clone() }
    }

    fn with_variant(&self, variant: Arc<dyn Variant>) -> Self {
        Self { variant: Some(variant), ..self.clone() }
    }
}

/// A cluster with the flow kinds, a recorder of all their versions, and a host that can be killed.
struct FlowStage {
    script: FlowScript,
    cluster: TestCluster,
    history: History,
    series: HostSeries,
    set: Option<SetKey>,
    targets: Vec<(String, String)>,
}

impl FlowStage {
    async fn set(script: FlowScript, plugins: Plugins) -> anyhow::Result<Self> {
        let mut cluster = TestCluster::sim(script.seed).await?;
        prepare(&mut cluster).await?;
        let (set, targets) = script.subject.plant(&cluster).await?;
        let history = History::record(&cluster.client, subject::recorded());
        let Backend::Sim(sim) = &cluster.backend else { anyhow::bail!("these runs are on the in-memory API") };
        let series = HostSeries::begin(SeriesSetup {
            cluster: sim.clone(),
            plugins,
            serves: Serves::Flows,
            troubles: script.troubles.clone(),
            delays: script.delays,
            fails_over: script.fails_over,
            variant: script.variant.clone(),
            mishap: None,
        })?;
        Ok(Self { script, cluster, history, series, set, targets })
    }

    /// Creates the object and waits until it has ended and nothing changes any more.
    async fn play(mut self) -> anyhow::Result<Outcome> {
        let subject = self.script.subject;
        subject.begin(&self.cluster, &self.targets).await?;
        let namespace = self.cluster.namespace.clone();
        let wants_mending = |versions: &[Version]| subject::wants_mending(&namespace, versions);
        let (mut crashed, mut mended) = (false, false);
        let ended = loop {
            let life = self.series.present();
            tokio::select! {
                () = life.over() => {
                    crashed = true;
                    self.series.restart().await?;
                }
                wanted = self.history.until("a step to be mended", ENDED, wants_mending), if !mended => {
                    mended = true;
                    if wanted.is_ok() {
                        subject::mend(&self.cluster).await?;
                    }
                }
                ended = self.ended() => break ended,
            }
        };
        let mut breaches: Vec<String> = ended.err().into_iter().map(|error| format!("{error:#}")).collect();
        breaches.extend(self.judge().await?);
        let writes = self.series.interceptor().records();
        if self.script.tells {
            tell(&writes, &self.history);
        }
        self.series.kill().await?;
        Ok(Outcome { writes, crashed, breaches })
    }

    /// Waits for L1 and L2: the object ends, its expiring children go, and afterwards the host writes only its lease.
    async fn ended(&self) -> anyhow::Result<()> {
        let bound = ENDED + self.script.holds_up();
        let expected = self.script.subject.expected(&self.cluster.namespace);
        self.history.until("L1: the object to end", bound, |versions| expected.has_ended(versions)).await?;
        self.history.until("L1: what expires to go", CLEANED_UP, |versions| expected.is_clean(versions)).await?;
        tokio::time::sleep(LAST_WRITES + self.script.holds_up()).await;
        let before = self.series.acts();
        tokio::time::sleep(QUIET).await;
        let late: Vec<WriteRecord> = self.series.acts().into_iter().skip(before.len()).collect();
        anyhow::ensure!(late.is_empty(), "L2: writes after the end: {late:?}");
        Ok(())
    }

    async fn judge(&self) -> anyhow::Result<Vec<String>> {
        let versions: Vec<Version> = self.history.versions();
        let mut breaches = judge(&versions, &self.script.subject.expected(&self.cluster.namespace));
        breaches.extend(self.history.gaps().iter().map(|gap| format!("nobody saw all: {gap}")));
        if let Some(set) = &self.set {
            let settled = self.cluster.world.settled(set, ENDED).await;
            breaches.extend(settled.err().map(|error| format!("S1: {error}")));
            let verdict = self.cluster.world.ledger().verdict(&self.targets);
            breaches.extend((!subject::is_right(&verdict)).then(|| format!("S1: {verdict}")));
        }
        breaches.extend(super::evicted_twice(&self.series.interceptor().records()));
        breaches.extend(oracle::judge(self.cluster.history(), &self.cluster.namespace, &Meddling::default()));
        Ok(breaches)
    }
}
