//! Plays one plan on a rig, with the whole host in this process.
//!
//! Takes a rig in a namespace of its own and a plan; yields whether what was planned came to be, and what did not hold. A
//! host that dies leaves its wire cut, so that nothing it had begun still reaches the server. May not help the host.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use oarlock_bed::faults::{Killer, Plan as Faults};
use oarlock_bed::interception::Interceptor;
use oarlock_sim::world::SetKey;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::plan::{Blind, Pattern, Plan};
use super::script::{BARE, Plot};
use super::{JOB, ended_wrong, evicted_twice, harmless};
use crate::jobs::replace;
use crate::rig::Rig;
use crate::scenarios::identities;
use crate::variants::Variant;

const SETTLED: Duration = Duration::from_secs(120);
/// Far longer than any plan takes.
const ENDED: Duration = Duration::from_secs(150);
/// How long an ended job must stay quiet (L2).
const QUIET: Duration = Duration::from_secs(4);
const HOST: &str = "host";

/// What came of a plan.
#[derive(Debug)]
pub struct Played {
    /// Whether the host was ever killed, or blind.
    pub met: bool,
    /// What did not hold.
    pub breaches: Vec<String>,
}

/// A plan on its way.
struct Stage {
    plan: Plan,
    rig: Rig,
    set: SetKey,
    targets: Vec<(String, String)>,
    wire: Interceptor,
    killed: Arc<Notify>,
    variant: Option<Arc<dyn Variant>>,
    /// When the host sees again.
    sees: Option<Instant>,
    deleted: bool,
    met: bool,
}

/// Plays the plan of a seed in memory, where its time costs nothing, with a known-bad host if there is a `variant`.
///
/// # Errors
/// If the stage cannot be set; what the host does wrong is in what it yields.
pub fn play_seed(seed: u64, variant: Option<Arc<dyn Variant>>) -> anyhow::Result<Played> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(async { play(Rig::sim(seed).await?, Plan::of_seed(seed), variant).await })
}

async fn play(rig: Rig, plan: Plan, variant: Option<Arc<dyn Variant>>) -> anyhow::Result<Played> {
    let mut stage = Stage::set(rig, plan, variant).await?;
    stage.begin_host().await?;
    let Plan { plot, .. } = stage.plan;
    stage.rig.create_job(JOB, replace(&plot.names(&stage.targets), plot.spec())).await?;
    let ended = timeout(ENDED, stage.go_on()).await;
    stage.see();
    let mut breaches = Vec::new();
    match ended {
        Ok(went) => went?,
        Err(_) => breaches.push(format!("L1: the job does not end: {:?}", stage.rig.jobs().get_opt(JOB).await?)),
    }
    if breaches.is_empty() && timeout(ENDED, stage.until_quiet()).await.is_err() {
        breaches.push("L2: it never stops writing".to_owned());
    }
    breaches.extend(stage.judge().await?);
    let Stage { rig, met, .. } = stage;
    breaches.extend(rig.finish().await.err().map(|error| format!("{error:#}")));
    Ok(Played { met, breaches })
}

impl Stage {
    async fn set(rig: Rig, plan: Plan, variant: Option<Arc<dyn Variant>>) -> anyhow::Result<Self> {
        let set = plan.mode.plant(&rig, plan.targets).await?;
        rig.world.settled(&set, SETTLED).await?;
        let names = rig.pod_names(plan.mode.app()).await?;
        let targets = identities(&rig, &names).await?;
        if plan.plot.has_a_bare_pod() {
            rig.seedbed.bare_pod(BARE).await?;
        }
        let wire = Interceptor::new(Faults::none(), &["leases", "events"]);
        let killed = Arc::new(Notify::new());
        let (line, told) = (wire.clone(), killed.clone());
        let killer: Killer = Arc::new(move || {
            line.cut(true);
            told.notify_one();
        });
        wire.follow(Faults::new(plan.faults(&killer))?);
        Ok(Self { plan, rig, set, targets, wire, killed, variant, sees: None, deleted: false, met: false })
    }

    async fn begin_host(&mut self) -> anyhow::Result<()> {
        let mut begin = self.rig.host_named(HOST);
        begin.wire = self.wire.clone();
        begin.variant = self.variant.clone();
        self.rig.start(begin).await
    }

    /// Another process of the same name, which counts on.
    async fn restart(&mut self) -> anyhow::Result<()> {
        self.met = true;
        self.rig.kill_host(HOST).await?;
        self.wire.cut(false);
        self.begin_host().await
    }

    /// The host no longer sees.
    fn go_blind(&mut self, blind: &Blind) {
        for kind in &blind.kinds {
            match self.plan.pattern {
                Pattern::Unobserved(_) => self.wire.sever(kind),
                _ => self.wire.freeze(kind),
            }
        }
        self.met = true;
        self.sees = Some(Instant::now() + Duration::from_secs(blind.seconds));
    }

    /// The host sees again.
    fn see(&mut self) {
        self.wire.thaw();
        self.wire.mend();
        self.sees = None;
    }

    /// Goes on until the job has ended and everything planned has happened, if it comes at all.
    async fn go_on(&mut self) -> anyhow::Result<()> {
        let blind = self.plan.pattern.blind().cloned();
        let delete_at = if let Plot::Deleted { at } = self.plan.plot { at } else { u64::MAX };
        let (mut dies, mut looks) = (None, tokio::time::interval(Duration::from_millis(300)));
        let (killed, wire) = (self.killed.clone(), self.wire.clone());
        loop {
            let blind_at = blind.as_ref().filter(|_| !self.met).map_or(u64::MAX, |blind| blind.at);
            let sees = self.sees;
            tokio::select! {
                () = killed.notified() => self.restart().await?,
                () = wire.reached(blind_at) => {
                    let blind = blind.as_ref().context("nothing begins that was not planned")?;
                    self.go_blind(blind);
                    dies = blind.dies.then(|| Instant::now() + Duration::from_secs(blind.seconds) / 2);
                }
                () = sleep_until(dies.unwrap_or_else(Instant::now)), if dies.is_some() => {
                    dies = None;
                    self.restart().await?;
                }
                () = sleep_until(sees.unwrap_or_else(Instant::now)), if sees.is_some() => self.see(),
                () = wire.reached(delete_at), if !self.deleted => {
                    self.deleted = true;
                    self.rig.delete_job(JOB).await?;
                }
                _ = looks.tick() => {
                    if self.has_ended().await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn has_ended(&self) -> anyhow::Result<bool> {
        let job = self.rig.jobs().get_opt(JOB).await?;
        Ok(job.is_none_or(|job| !self.deleted && job.data.pointer("/status/endTime").is_some()))
    }

    /// L2. A death in the last writes of all is survived too.
    async fn until_quiet(&mut self) -> anyhow::Result<()> {
        let (killed, wire) = (self.killed.clone(), self.wire.clone());
        loop {
            tokio::select! {
                () = killed.notified() => self.restart().await?,
                () = wire.silent_for(QUIET) => return Ok(()),
            }
        }
    }

    async fn judge(&mut self) -> anyhow::Result<Vec<String>> {
        let mut breaches = Vec::new();
        match self.rig.jobs().get_opt(JOB).await? {
            Some(job) => breaches.extend(ended_wrong(&job, self.plan.plot, None)),
            None if self.deleted => {}
            None => breaches.push("S2: the job is gone".to_owned()),
        }
        let patience = if self.deleted { Duration::ZERO } else { Duration::from_secs(30) };
        let verdict = self.rig.world.ledger().verdict_within(&self.targets, patience).await;
        if !(verdict.is_clean() || self.deleted && harmless(&verdict)) {
            breaches.push(format!("S1: {verdict}"));
        }
        if !self.deleted {
            let settled = self.rig.world.settled(&self.set, SETTLED).await;
            breaches.extend(settled.err().map(|error| format!("S1: {error}")));
        }
        let left = self.rig.leftovers().await?;
        if !left.is_empty() {
            breaches.push(format!("L3: left behind: {left:?}"));
        }
        breaches.extend(evicted_twice(&self.wire.records()));
        Ok(breaches)
    }
}
