//! A JobFlow or a DaemonJob on the in-memory API whose host is killed at one chosen write, and what must be true then.
//!
//! Takes a [`FlowScript`]; yields how many writes there were and every property that did not hold, at any version of the
//! object and its children. May not help the host.

pub mod judge;
pub mod points;
pub mod subject;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use oarlock_bed::interception::WriteRecord;
use oarlock_sim::Delays;
use oarlock_sim::world::{History, SetKey, Version};
use oarlock_wasm::Plugins;

use self::judge::judge;
use self::subject::Subject;
use super::host::Serves;
use super::mode::Mode;
use super::script::{FAILOVER, Scripted, Trouble, late};
use super::series::{HostSeries, SeriesSetup};
use super::{LAST_WRITES, Outcome, QUIET, plugins, tell};
use crate::flows::prepare;
use crate::oracle::{self, Meddling};
use crate::rig::{Ground, Rig};
use crate::variants::Variant;

/// Far longer than a flow takes, kills included.
const ENDED: Duration = Duration::from_secs(180);
/// How long what follows the end may take: a time to live that begins, and the status of a template.
const CLEANED_UP: Duration = Duration::from_secs(60);

/// What happens.
#[derive(Clone)]
pub struct FlowScript {
    /// What is run.
    pub subject: Subject,
    /// Whoever comes after a host that was killed has another name, and waits for the lease.
    pub fails_over: bool,
    /// What goes wrong, in the order of the writes.
    pub troubles: Vec<Trouble>,
    /// How late everything is for the host.
    pub delays: Option<Delays>,
    /// What the world draws its times and names from.
    pub seed: u64,
    /// Whether it prints all that happened.
    pub tells: bool,
    /// A known-bad host; one that is right otherwise.
    pub variant: Option<Arc<dyn Variant>>,
}

impl FlowScript {
    /// A run without any trouble.
    #[must_use]
    pub fn of(subject: Subject) -> Self {
        Self { subject, fails_over: false, troubles: Vec::new(), delays: None, seed: 1, tells: false, variant: None }
    }

    /// How much later its last writes come than where nothing goes wrong.
    fn holds_up(&self) -> Duration {
        // Another leader comes once the lease of the killed one has run out.
        let leader = if self.fails_over { FAILOVER } else { Duration::ZERO };
        leader + self.troubles.iter().map(|trouble| trouble.holds_up()).sum::<Duration>()
    }
}

impl Scripted for FlowScript {
    fn run(self) -> anyhow::Result<Outcome> {
        // Its operation replaces a pod.
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

/// A cluster with the kinds of flows, a recorder of all that concerns them, and a host that can be killed.
struct FlowStage {
    script: FlowScript,
    rig: Rig,
    history: History,
    series: HostSeries,
    set: Option<SetKey>,
    targets: Vec<(String, String)>,
}

impl FlowStage {
    async fn set(script: FlowScript, plugins: Plugins) -> anyhow::Result<Self> {
        let mut rig = Rig::sim(script.seed).await?;
        prepare(&mut rig).await?;
        let (set, targets) = script.subject.plant(&rig).await?;
        let history = History::record(&rig.client, subject::recorded());
        let Ground::Sim(cluster) = &rig.ground else { anyhow::bail!("these runs are on the in-memory API") };
        let series = HostSeries::begin(SeriesSetup {
            cluster: cluster.clone(),
            plugins,
            serves: Serves::Flows,
            troubles: script.troubles.clone(),
            delays: script.delays,
            fails_over: script.fails_over,
            variant: script.variant.clone(),
            mishap: None,
        })?;
        Ok(Self { script, rig, history, series, set, targets })
    }

    /// Creates the object and goes on until everything is at rest.
    async fn play(mut self) -> anyhow::Result<Outcome> {
        let subject = self.script.subject;
        subject.begin(&self.rig, &self.targets).await?;
        let namespace = self.rig.namespace.clone();
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
                        subject::mend(&self.rig).await?;
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

    /// L1, L2: the object comes to its end, what has a time to live goes, and then the host writes nothing but its lease.
    async fn ended(&self) -> anyhow::Result<()> {
        let bound = ENDED + self.script.holds_up();
        let expected = self.script.subject.expected(&self.rig.namespace);
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
        let mut breaches = judge(&versions, &self.script.subject.expected(&self.rig.namespace));
        breaches.extend(self.history.gaps().iter().map(|gap| format!("nobody saw all: {gap}")));
        if let Some(set) = &self.set {
            let settled = self.rig.world.settled(set, ENDED).await;
            breaches.extend(settled.err().map(|error| format!("S1: {error}")));
            let verdict = self.rig.world.ledger().verdict(&self.targets);
            breaches.extend((!subject::is_right(&verdict)).then(|| format!("S1: {verdict}")));
        }
        breaches.extend(super::evicted_twice(&self.series.interceptor().records()));
        breaches.extend(oracle::judge(self.rig.history(), &self.rig.namespace, &Meddling::default()));
        Ok(breaches)
    }
}
