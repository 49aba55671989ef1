//! The host as a process, killed with SIGKILL again and again while it replaces 400 pods on a real control plane.
//!
//! Two jobs of 200 targets run at once, one in each mode, so that every kill hits both. The host has exactly the rights
//! that `oarlock manifests` gives it, and speaks through a proxy that counts its writes and kills it at chosen ones:
//! before a write is sent, once it is committed, and after the reply.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use oarlock_bed::accounts::Account;
use oarlock_bed::control_plane::{self, ControlPlane};
use oarlock_bed::faults::{Fault, Plan, Then, When};
use oarlock_bed::interception::{Interceptor, WriteRecord};
use oarlock_bed::proxy::Proxy;
use oarlock_tests::crash::process::HostProcess;
use oarlock_tests::crash::script::Mode;
use oarlock_tests::crash::sweep;
use oarlock_tests::crash::{evicted_twice, failures};
use oarlock_tests::jobs::{Told, replace};
use oarlock_tests::rig::{Rig, real_plane};
use oarlock_tests::scenarios::identities;
use serde_json::json;

const TARGETS: usize = 200;
const JOB: &str = "r";
const SETTLED: Duration = Duration::from_secs(120);
const ENDED: Duration = Duration::from_secs(240);
const QUIET: Duration = Duration::from_secs(10);
/// Fewer kills than this show too little.
const KILLS: usize = 30;
/// Best effort, and the lease is renewed for ever: neither is a point.
const IGNORED: [&str; 2] = ["leases", "events"];

/// One job, and the pods that it replaces.
struct Side {
    mode: Mode,
    rig: Rig,
    targets: Vec<(String, String)>,
}

impl Side {
    async fn plant(plane: &Arc<ControlPlane>, mode: Mode) -> anyhow::Result<Self> {
        let rig = Rig::real(plane.clone(), mode.app()).await?;
        let set = mode.plant(&rig, TARGETS).await?;
        rig.world.settled(&set, SETTLED).await?;
        let names = rig.pod_names(mode.app()).await?;
        let targets = identities(&rig, &names).await?;
        Ok(Self { mode, rig, targets })
    }

    async fn begin(&self) -> anyhow::Result<()> {
        let names: Vec<String> = self.targets.iter().map(|(name, _)| name.clone()).collect();
        self.rig.create_job(JOB, replace(&names, json!({}))).await?;
        Ok(())
    }

    async fn has_ended(&self) -> anyhow::Result<bool> {
        Ok(self.rig.jobs().get(JOB).await?.data.pointer("/status/endTime").is_some())
    }

    async fn judge(&self) -> anyhow::Result<Vec<String>> {
        let mut breaches = Vec::new();
        let job = self.rig.jobs().get(JOB).await?;
        if job.progress() != "Succeeded" {
            breaches.extend(failures(&job, None));
        }
        let verdict = self.rig.world.ledger().verdict(&self.targets);
        if !verdict.is_clean() {
            breaches.push(format!("S1: {verdict}"));
        }
        let left = self.rig.leftovers().await?;
        if !left.is_empty() {
            breaches.push(format!("L3: left behind: {left:?}"));
        }
        breaches.extend(sweep::sweep(self.rig.history(), &self.rig.namespace, JOB));
        Ok(breaches.into_iter().map(|breach| format!("{:?}: {breach}", self.mode)).collect())
    }
}

/// Where it is killed: the first writes of all, then about every sixteenth; the moments take turns.
fn plan(host: &HostProcess) -> anyhow::Result<Plan> {
    let points = [1, 2, 3, 5, 8].into_iter().chain((1..200).map(|number| 8 + 16 * number));
    let moments = When::ALL.into_iter().cycle();
    Plan::new(points.zip(moments).map(|(at, when)| Fault { at, when, then: Then::Kill(host.killer()) }))
}

/// The moments that were hit, and how often. A write of a process that was dead by then is hit too, so these are more
/// than the kills.
fn moments(writes: &[WriteRecord]) -> BTreeMap<String, usize> {
    let mut moments = BTreeMap::new();
    for fault in writes.iter().filter_map(|write| write.fault.clone()) {
        *moments.entry(fault).or_insert(0) += 1;
    }
    moments
}

/// Starts the host anew whenever it was killed, until both jobs have ended.
async fn until_ended(host: &HostProcess, sides: &[Side; 2]) -> anyhow::Result<()> {
    let deadline = Instant::now() + ENDED;
    let mut looks = tokio::time::interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            () = host.killed() => host.begin()?,
            _ = looks.tick() => {
                host.check()?;
                if sides[0].has_ended().await? && sides[1].has_ended().await? {
                    return Ok(());
                }
                anyhow::ensure!(Instant::now() < deadline, "the jobs never end; the host's log ends with\n{}", host.tail());
            }
        }
    }
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
    let began = Instant::now();
    let plane = real_plane(control_plane::Options::default()).await?;
    let (collaset, evict) = tokio::try_join!(Side::plant(&plane, Mode::CollaSet), Side::plant(&plane, Mode::Evict))?;
    let sides = [collaset, evict];
    let proxy = Proxy::start(plane.config(Account::Host).await?, Interceptor::new(Plan::none(), &IGNORED)).await?;
    let host = HostProcess::start(&plane, &proxy.url()).context("the host does not start")?;
    proxy.interceptor().restart(plan(&host)?);
    let planted = began.elapsed();
    for side in &sides {
        side.begin().await?;
    }
    until_ended(&host, &sides).await?;
    let ended = began.elapsed();
    until_quiet(&host, proxy.interceptor()).await?;
    let writes = proxy.interceptor().records();
    let mut breaches = evicted_twice(&writes);
    for side in &sides {
        breaches.extend(side.judge().await?);
    }
    host.end();
    let (kills, moments) = (host.kills(), moments(&writes));
    println!(
        "{} writes, {kills} kills, {moments:?}; planted {planted:.0?}, ended {ended:.0?}, all {:.0?}",
        writes.len(),
        began.elapsed()
    );
    anyhow::ensure!(breaches.is_empty(), "{}", breaches.join("\n"));
    anyhow::ensure!(kills >= KILLS && moments.len() == When::ALL.len(), "too few kills: {kills}, {moments:?}");
    Ok(())
}
