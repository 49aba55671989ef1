//! A host process that is killed with SIGKILL again and again while it replaces 400 pods on a real control plane.
//!
//! Two jobs of 200 targets run at once, one in each mode, so that every kill hits both. Three smaller jobs run beside them: one whose new pods never
//! become ready, one with a target that does not exist, and one that the test deletes midway.
//!
//! The host has exactly the rights that `oarlock manifests` gives it. Its requests go through a proxy that counts its writes and kills the host at
//! chosen writes: before a write is sent, once it is committed, and after the reply. Between the kills, the proxy loses replies and refuses writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use oarlock_scenarios::host_process::HostProcess;
use oarlock_scenarios::is_soak;
use oarlock_scenarios::jobs::replace;
use oarlock_scenarios::mode::Mode;
use oarlock_scenarios::oracle::{self, Meddling};
use oarlock_scenarios::scenarios::identities;
use oarlock_scenarios::test_cluster::{TestCluster, real_plane};
use oarlock_search::crash::script::{Kind, Plot};
use oarlock_search::crash::{ended_wrong, evicted_twice, harmless};
use oarlock_sim::world::{Pause, Scope};
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::faults::Plan;
use oarlock_support::interception::{Interceptor, WriteRecord};
use oarlock_support::proxy::Proxy;
use tokio::sync::Mutex;

#[path = "crash_real/flows.rs"]
mod flows;

/// Lets one test run at a time. Each test has its own control plane, and two control planes on one machine make each other late.
static ALONE: Mutex<()> = Mutex::const_new(());

const JOB: &str = "r";
const SETTLED: Duration = Duration::from_secs(120);
const ENDED: Duration = Duration::from_secs(240);
const QUIET: Duration = Duration::from_secs(10);
/// The fewest kills that count as a proof.
const KILLS: usize = 30;
/// The fewest faults, kills included, that count as a proof.
const POINTS: usize = 60;
/// The fewest faults of a soak.
const SOAKED: usize = 130;
/// Number of the write at which the test deletes the job of `Plot::Deleted`.
const DELETED: u64 = 120;
/// Resources whose writes are no fault points: events are best effort, and the host renews its lease forever.
const IGNORED: [&str; 2] = ["leases", "events"];

/// The jobs and the number of targets of each.
const SIDES: [(Mode, Plot, usize); 5] = [
    (Mode::CollaSet, Plot::Success, 200),
    (Mode::Evict, Plot::Success, 200),
    (Mode::CollaSet, Plot::NeverServes, 10),
    (Mode::EvictSameName, Plot::Missing, 10),
    (Mode::CollaSet, Plot::Deleted { at: DELETED }, 30),
];

/// One job and the pods that it replaces.
struct Side {
    mode: Mode,
    plot: Plot,
    cluster: TestCluster,
    targets: Vec<(String, String)>,
}

impl Side {
    async fn plant(plane: &Arc<ControlPlane>, number: usize) -> anyhow::Result<Self> {
        let (mode, plot, count) = *SIDES.get(number).context("there is no such side")?;
        let cluster = TestCluster::real(plane.clone(), &format!("side-{number}")).await?;
        let set = mode.plant(&cluster, count).await?;
        cluster.world.settled(&set, SETTLED).await?;
        let names = cluster.pod_names(mode.app()).await?;
        let targets = identities(&cluster, &names).await?;
        if plot == Plot::NeverServes {
            cluster.world.hold(Pause::Readiness, Scope::World);
        }
        Ok(Self { mode, plot, cluster, targets })
    }

    async fn begin(&self) -> anyhow::Result<()> {
        self.cluster.create_job(JOB, replace(&self.plot.names(&self.targets), self.plot.spec())).await?;
        Ok(())
    }

    async fn has_ended(&self) -> anyhow::Result<bool> {
        let job = self.cluster.jobs().get_opt(JOB).await?;
        let is_deleted = matches!(self.plot, Plot::Deleted { .. });
        Ok(job.map_or(is_deleted, |job| !is_deleted && job.data.pointer("/status/endTime").is_some()))
    }

    async fn judge(&self) -> anyhow::Result<Vec<String>> {
        let mut breaches = Vec::new();
        if let Some(job) = self.cluster.jobs().get_opt(JOB).await? {
            breaches.extend(ended_wrong(&job, self.plot, None));
        }
        let broken_off = matches!(self.plot, Plot::Deleted { .. } | Plot::NeverServes);
        let patience = if broken_off { Duration::ZERO } else { Duration::from_secs(30) };
        let verdict = self.cluster.world.ledger().verdict_within(&self.targets, patience).await;
        if !(verdict.is_clean() || broken_off && harmless(&verdict)) {
            breaches.push(format!("S1: {verdict}"));
        }
        let left = self.cluster.leftovers().await?;
        if !left.is_empty() {
            breaches.push(format!("L3: left behind: {left:?}"));
        }
        breaches.extend(oracle::judge(self.cluster.history(), &self.cluster.namespace, &Meddling::default()));
        let what = format!("{:?}, {:?}", self.mode, self.plot);
        Ok(breaches.into_iter().map(|breach| format!("{what}: {breach}")).collect())
    }
}

/// Plans a fault at the first writes, then at about every eighth write. Kills and other faults alternate.
fn plan(host: &HostProcess) -> anyhow::Result<Plan> {
    let most = if is_soak() { 100 } else { 55 };
    let (kills, others): (Vec<Kind>, Vec<Kind>) = Kind::ALL.into_iter().partition(|kind| matches!(kind, Kind::Kill(_)));
    let kills =
        [1, 2, 3, 5, 8].into_iter().chain((1..most).map(|number| 8 + 16 * number)).zip(kills.into_iter().cycle());
    let others = (1..most).map(|number| 16 * number).zip(others.into_iter().cycle());
    Plan::new(kills.chain(others).map(|(at, kind)| kind.fault(at, host.killer())))
}

/// Counts the writes by verb, resource and status of the answer.
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

/// Counts the faults by name. A write of a host that was already dead can meet a fault too, so these counts exceed what the host saw.
fn moments(writes: &[WriteRecord]) -> BTreeMap<String, usize> {
    let mut moments = BTreeMap::new();
    for fault in writes.iter().filter_map(|write| write.fault.clone()) {
        *moments.entry(fault).or_insert(0) += 1;
    }
    moments
}

/// Restarts the host after each kill, until all jobs have ended.
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
                    side.cluster.delete_job(JOB).await?;
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

/// L2: waits until the host writes nothing more. A kill at the last writes must be survived too.
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
