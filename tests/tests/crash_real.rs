//! The host as a process, killed with SIGKILL again and again while it replaces 400 pods on a real control plane.
//!
//! Two jobs of 200 targets run at once, one in each mode, so that every kill hits both; beside them one whose new pods never
//! serve, one with a target that does not exist, and one that is deleted on its way. The host has exactly the rights that
//! `oarlock manifests` gives it, and speaks through a proxy that counts its writes and kills it at chosen ones: before a write
//! is sent, once it is committed, and after the reply. Between the kills, replies are lost and writes refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use oarlock_bed::accounts::Account;
use oarlock_bed::control_plane::{self, ControlPlane};
use oarlock_bed::faults::Plan;
use oarlock_bed::interception::{Interceptor, WriteRecord};
use oarlock_bed::proxy::Proxy;
use oarlock_sim::world::{Pause, Scope};
use oarlock_tests::crash::mode::Mode;
use oarlock_tests::crash::process::HostProcess;
use oarlock_tests::crash::script::{Kind, Plot};
use oarlock_tests::crash::sweep::is_soak;
use oarlock_tests::crash::{ended_wrong, evicted_twice, harmless};
use oarlock_tests::jobs::replace;
use oarlock_tests::oracle::{self, Meddling};
use oarlock_tests::rig::{Rig, real_plane};
use oarlock_tests::scenarios::identities;
use tokio::sync::Mutex;

#[path = "crash_real/flows.rs"]
mod flows;

/// One at a time: each has a control plane of its own, and what it waits for comes later beside another.
static ALONE: Mutex<()> = Mutex::const_new(());

const JOB: &str = "r";
const SETTLED: Duration = Duration::from_secs(120);
const ENDED: Duration = Duration::from_secs(240);
const QUIET: Duration = Duration::from_secs(10);
/// Fewer kills than this show too little.
const KILLS: usize = 30;
/// Fewer points, kills among them, show too little.
const POINTS: usize = 60;
/// The same for a soak.
const SOAKED: usize = 130;
/// The write at which the job that is deleted is.
const DELETED: u64 = 120;
/// Best effort, and the lease is renewed for ever: neither is a point.
const IGNORED: [&str; 2] = ["leases", "events"];

/// The jobs, and how many targets each has.
const SIDES: [(Mode, Plot, usize); 5] = [
    (Mode::CollaSet, Plot::Success, 200),
    (Mode::Evict, Plot::Success, 200),
    (Mode::CollaSet, Plot::NeverServes, 10),
    (Mode::EvictSameName, Plot::Missing, 10),
    (Mode::CollaSet, Plot::Deleted { at: DELETED }, 30),
];

/// One job, and the pods that it replaces.
struct Side {
    mode: Mode,
    plot: Plot,
    rig: Rig,
    targets: Vec<(String, String)>,
}

impl Side {
    async fn plant(plane: &Arc<ControlPlane>, number: usize) -> anyhow::Result<Self> {
        let (mode, plot, count) = *SIDES.get(number).context("there is no such side")?;
        let rig = Rig::real(plane.clone(), &format!("side-{number}")).await?;
        let set = mode.plant(&rig, count).await?;
        rig.world.settled(&set, SETTLED).await?;
        let names = rig.pod_names(mode.app()).await?;
        let targets = identities(&rig, &names).await?;
        if plot == Plot::NeverServes {
            rig.world.hold(Pause::Readiness, Scope::World);
        }
        Ok(Self { mode, plot, rig, targets })
    }

    async fn begin(&self) -> anyhow::Result<()> {
        self.rig.create_job(JOB, replace(&self.plot.names(&self.targets), self.plot.spec())).await?;
        Ok(())
    }

    async fn has_ended(&self) -> anyhow::Result<bool> {
        let job = self.rig.jobs().get_opt(JOB).await?;
        let is_deleted = matches!(self.plot, Plot::Deleted { .. });
        Ok(job.map_or(is_deleted, |job| !is_deleted && job.data.pointer("/status/endTime").is_some()))
    }

    async fn judge(&self) -> anyhow::Result<Vec<String>> {
        let mut breaches = Vec::new();
        if let Some(job) = self.rig.jobs().get_opt(JOB).await? {
            breaches.extend(ended_wrong(&job, self.plot, None));
        }
        let broken_off = matches!(self.plot, Plot::Deleted { .. } | Plot::NeverServes);
        let patience = if broken_off { Duration::ZERO } else { Duration::from_secs(30) };
        let verdict = self.rig.world.ledger().verdict_within(&self.targets, patience).await;
        if !(verdict.is_clean() || broken_off && harmless(&verdict)) {
            breaches.push(format!("S1: {verdict}"));
        }
        let left = self.rig.leftovers().await?;
        if !left.is_empty() {
            breaches.push(format!("L3: left behind: {left:?}"));
        }
        breaches.extend(oracle::judge(self.rig.history(), &self.rig.namespace, &Meddling::default()));
        let what = format!("{:?}, {:?}", self.mode, self.plot);
        Ok(breaches.into_iter().map(|breach| format!("{what}: {breach}")).collect())
    }
}

/// What happens, and where: at the first writes of all, then at about every eighth, a kill and something else in turns.
fn plan(host: &HostProcess) -> anyhow::Result<Plan> {
    let most = if is_soak() { 100 } else { 55 };
    let (kills, others): (Vec<Kind>, Vec<Kind>) = Kind::ALL.into_iter().partition(|kind| matches!(kind, Kind::Kill(_)));
    let kills =
        [1, 2, 3, 5, 8].into_iter().chain((1..most).map(|number| 8 + 16 * number)).zip(kills.into_iter().cycle());
    let others = (1..most).map(|number| 16 * number).zip(others.into_iter().cycle());
    Plan::new(kills.chain(others).map(|(at, kind)| kind.fault(at, host.killer())))
}

/// The writes by what they wrote, and what became of them.
fn kinds(writes: &[WriteRecord]) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for write in writes {
        let path = write.path.split('/').rev().take(3).collect::<Vec<_>>();
        let resource = match path.as_slice() {
            [last @ ("status" | "eviction"), _, plural] => format!("{plural}/{last}"),
            [_, plural, _] => (*plural).to_owned(),
            _ => write.path.clone(),
        };
        let status = write.status.map_or("unanswered".to_owned(), |status| status.as_u16().to_string());
        *kinds.entry(format!("{} {resource} {status}", write.verb)).or_insert(0) += 1;
    }
    kinds
}

/// The faults that were met, and how often. A write of a process that was dead by then meets one too, so these are more
/// than what the host has seen.
fn moments(writes: &[WriteRecord]) -> BTreeMap<String, usize> {
    let mut moments = BTreeMap::new();
    for fault in writes.iter().filter_map(|write| write.fault.clone()) {
        *moments.entry(fault).or_insert(0) += 1;
    }
    moments
}

/// Starts the host anew whenever it was killed, until all jobs have ended.
async fn until_ended(host: &HostProcess, interceptor: &Interceptor, sides: &[Side]) -> anyhow::Result<()> {
    let deadline = Instant::now() + ENDED;
    let mut looks = tokio::time::interval(Duration::from_millis(500));
    let mut deleted = false;
    loop {
        tokio::select! {
            () = host.killed() => host.begin()?,
            () = interceptor.reached(DELETED), if !deleted => {
                deleted = true;
                for side in sides.iter().filter(|side| matches!(side.plot, Plot::Deleted { .. })) {
                    side.rig.delete_job(JOB).await?;
                }
            }
            _ = looks.tick() => {
                host.check()?;
                if all_have_ended(sides).await? {
                    return Ok(());
                }
                anyhow::ensure!(Instant::now() < deadline, "the jobs never end; the host's log ends with\n{}", host.tail());
            }
        }
    }
}

async fn all_have_ended(sides: &[Side]) -> anyhow::Result<bool> {
    for side in sides {
        if !side.has_ended().await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// L2: nothing more is written. A kill in the last writes of all is survived too.
async fn until_quiet(host: &HostProcess, interceptor: &Interceptor) -> anyhow::Result<()> {
    let deadline = Instant::now() + ENDED;
    loop {
        tokio::select! {
            () = host.killed() => host.begin()?,
            () = interceptor.silent_for(QUIET) => return Ok(()),
            () = tokio::time::sleep_until(deadline.into()) => anyhow::bail!("L2: it never stops writing"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn four_hundred_pods_are_replaced_once_each_though_the_host_is_killed_thirty_times() -> anyhow::Result<()> {
    let _alone = ALONE.lock().await;
    let began = Instant::now();
    let plane = real_plane(control_plane::Options::default()).await?;
    let sides = futures::future::try_join_all((0..SIDES.len()).map(|number| Side::plant(&plane, number))).await?;
    let proxy = Proxy::start(plane.config(Account::Host).await?, Interceptor::new(Plan::none(), &IGNORED)).await?;
    let host = HostProcess::start(&plane, &proxy.url()).context("the host does not start")?;
    proxy.interceptor().restart(plan(&host)?);
    let planted = began.elapsed();
    for side in &sides {
        side.begin().await?;
    }
    until_ended(&host, proxy.interceptor(), &sides).await?;
    let ended = began.elapsed();
    until_quiet(&host, proxy.interceptor()).await?;
    let writes = proxy.interceptor().records();
    let mut breaches = evicted_twice(&writes);
    for side in &sides {
        breaches.extend(side.judge().await?);
    }
    host.end();
    let (kills, moments) = (host.kills(), moments(&writes));
    let points: usize = moments.values().sum();
    println!(
        "{} writes, {kills} kills, {points} points, {moments:?}; planted {planted:.0?}, ended {ended:.0?}, all {:.0?}\n{:#?}",
        writes.len(),
        began.elapsed(),
        kinds(&writes)
    );
    anyhow::ensure!(breaches.is_empty(), "{}", breaches.join("\n"));
    let floor = if is_soak() { SOAKED } else { POINTS };
    let enough = kills >= KILLS && points >= floor && moments.len() == Kind::ALL.len();
    anyhow::ensure!(enough, "too few kills or points: {kills}, {points}, {moments:?}");
    Ok(())
}
