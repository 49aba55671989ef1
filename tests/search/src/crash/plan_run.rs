//! Plays one plan on a test cluster, with the whole host in this process.
//!
//! Takes a test cluster in its own namespace and a plan; yields whether a fault happened, and the properties that did not hold. A
//! dying host leaves its connection cut, so that none of its requests still reaches the server. May not help the host.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use oarlock_sim::world::SetKey;
use oarlock_support::faults::{Killer, Plan as Faults};
use oarlock_support::interception::Interceptor;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::plan::{Blind, Pattern, Plan};
use super::script::{BARE, Plot};
use super::{JOB, ended_wrong, evicted_twice, harmless};
use oarlock_scenarios::jobs::replace;
use oarlock_scenarios::scenarios::identities;
use oarlock_scenarios::test_cluster::TestCluster;
use oarlock_scenarios::variant::Variant;

const SETTLED: Duration = Duration::from_secs(120);
/// The time limit of a plan. Every plan takes far less.
const ENDED: Duration = Duration::from_secs(150);
/// The time for which the host must write nothing after the job has ended (L2).
const QUIET: Duration = Duration::from_secs(4);
const HOST: &str = "host";

/// The result of a plan.
#[derive(Debug)]
pub struct Played {
    /// True if the host was killed, or if its watches were disturbed.
    pub met: bool,
    /// The properties that did not hold.
    pub breaches: Vec<String>,
}

/// A plan that is being played.
struct PlanRun {
    plan: Plan,
    cluster: TestCluster,
    set: SetKey,
    targets: Vec<(String, String)>,
    interceptor: Interceptor,
    killed: Arc<Notify>,
    variant: Option<Arc<dyn Variant>>,
    /// The time at which the watches deliver again.
    sees: Option<Instant>,
    deleted: bool,
    met: bool,
}

/// Plays the plan of a seed in memory, under paused time. A `variant` makes the host a known-bad one.
///
/// # Errors
/// If the run cannot be set up. Faults of the host are in the result, not in the error.
pub fn play_seed(seed: u64, variant: Option<Arc<dyn Variant>>) -> anyhow::Result<Played> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(async { play(TestCluster::sim(seed).await?, Plan::of_seed(seed), variant).await })
}

async fn play(cluster: TestCluster, plan: Plan, variant: Option<Arc<dyn Variant>>) -> anyhow::Result<Played> {
    let mut run = PlanRun::set(cluster, plan, variant).await?;
    run.begin_host().await?;
    let Plan { plot, .. } = run.plan;
    run.cluster.create_job(JOB, replace(&plot.names(&run.targets), plot.spec())).await?;
    let ended = timeout(ENDED, run.go_on()).await;
    run.see();
    let mut breaches = Vec::new();
    match ended {
        Ok(went) => went?,
        Err(_) => breaches.push(format!("L1: the job does not end: {:?}", run.cluster.jobs().get_opt(JOB).await?)),
    }
    if breaches.is_empty() && timeout(ENDED, run.until_quiet()).await.is_err() {
        breaches.push("L2: it never stops writing".to_owned());
    }
    breaches.extend(run.judge().await?);
    let PlanRun { cluster, met, .. } = run;
    breaches.extend(cluster.finish().await.err().map(|error| format!("{error:#}")));
    Ok(Played { met, breaches })
}

impl PlanRun {
    async fn set(cluster: TestCluster, plan: Plan, variant: Option<Arc<dyn Variant>>) -> anyhow::Result<Self> {
        let set = plan.mode.plant(&cluster, plan.targets).await?;
        cluster.world.settled(&set, SETTLED).await?;
        let names = cluster.pod_names(plan.mode.app()).await?;
        let targets = identities(&cluster, &names).await?;
        if plan.plot.has_a_bare_pod() {
            cluster.seedbed.bare_pod(BARE).await?;
        }
        let interceptor = Interceptor::new(Faults::none(), &["leases", "events"]);
        let killed = Arc::new(Notify::new());
        let (line, told) = (interceptor.clone(), killed.clone());
        let killer: Killer = Arc::new(move || {
            line.cut(true);
            told.notify_one();
        });
        interceptor.follow(Faults::new(plan.faults(&killer))?);
        Ok(Self { plan, cluster, set, targets, interceptor, killed, variant, sees: None, deleted: false, met: false })
    }

    async fn begin_host(&mut self) -> anyhow::Result<()> {
        let mut begin = self.cluster.host_named(HOST);
        begin.interceptor = self.interceptor.clone();
        begin.variant = self.variant.clone();
        self.cluster.start(begin).await
    }

    /// Starts another process of the same name. The count of writes goes on.
    async fn restart(&mut self) -> anyhow::Result<()> {
        self.met = true;
        self.cluster.kill_host(HOST).await?;
        self.interceptor.cut(false);
        self.begin_host().await
    }

    /// Freezes or cuts the host's watches of these kinds.
    fn go_blind(&mut self, blind: &Blind) {
        for kind in &blind.kinds {
            match self.plan.pattern {
                Pattern::Unobserved(_) => self.interceptor.sever(kind),
                _ => self.interceptor.freeze(kind),
            }
        }
        self.met = true;
        self.sees = Some(Instant::now() + Duration::from_secs(blind.seconds));
    }

    /// Lets the host's watches deliver again.
    fn see(&mut self) {
        self.interceptor.thaw();
        self.interceptor.mend();
        self.sees = None;
    }

    /// Plays the plan until the job has ended or is gone.
    async fn go_on(&mut self) -> anyhow::Result<()> {
        let blind = self.plan.pattern.blind().cloned();
        let delete_at = if let Plot::Deleted { at } = self.plan.plot { at } else { u64::MAX };
        let (mut dies, mut looks) = (None, tokio::time::interval(Duration::from_millis(300)));
        let (killed, interceptor) = (self.killed.clone(), self.interceptor.clone());
        loop {
            let blind_at = blind.as_ref().filter(|_| !self.met).map_or(u64::MAX, |blind| blind.at);
            let sees = self.sees;
            tokio::select! {
                () = killed.notified() => self.restart().await?,
                () = interceptor.reached(blind_at) => {
                    let blind = blind.as_ref().context("nothing begins that was not planned")?;
                    self.go_blind(blind);
                    dies = blind.dies.then(|| Instant::now() + Duration::from_secs(blind.seconds) / 2);
                }
                () = sleep_until(dies.unwrap_or_else(Instant::now)), if dies.is_some() => {
                    dies = None;
                    self.restart().await?;
                }
                () = sleep_until(sees.unwrap_or_else(Instant::now)), if sees.is_some() => self.see(),
                () = interceptor.reached(delete_at), if !self.deleted => {
                    self.deleted = true;
                    self.cluster.delete_job(JOB).await?;
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
        let job = self.cluster.jobs().get_opt(JOB).await?;
        Ok(job.is_none_or(|job| !self.deleted && job.data.pointer("/status/endTime").is_some()))
    }

    /// Waits for L2. A host that dies in the last writes is started again.
    async fn until_quiet(&mut self) -> anyhow::Result<()> {
        let (killed, interceptor) = (self.killed.clone(), self.interceptor.clone());
        loop {
            tokio::select! {
                () = killed.notified() => self.restart().await?,
                () = interceptor.silent_for(QUIET) => return Ok(()),
            }
        }
    }

    async fn judge(&mut self) -> anyhow::Result<Vec<String>> {
        let mut breaches = Vec::new();
        match self.cluster.jobs().get_opt(JOB).await? {
            Some(job) => breaches.extend(ended_wrong(&job, self.plan.plot, None)),
            None if self.deleted => {}
            None => breaches.push("S2: the job is gone".to_owned()),
        }
        let patience = if self.deleted { Duration::ZERO } else { Duration::from_secs(30) };
        let verdict = self.cluster.world.ledger().verdict_within(&self.targets, patience).await;
        if !(verdict.is_clean() || self.deleted && harmless(&verdict)) {
            breaches.push(format!("S1: {verdict}"));
        }
        if !self.deleted {
            let settled = self.cluster.world.settled(&self.set, SETTLED).await;
            breaches.extend(settled.err().map(|error| format!("S1: {error}")));
        }
        let left = self.cluster.leftovers().await?;
        if !left.is_empty() {
            breaches.push(format!("L3: left behind: {left:?}"));
        }
        breaches.extend(evicted_twice(&self.interceptor.records()));
        Ok(breaches)
    }
}
