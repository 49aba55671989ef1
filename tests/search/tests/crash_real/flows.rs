//! A JobFlow of ten steps and a DaemonJob of twenty nodes at once on a real control plane, whose Job controller runs the Jobs. The host is killed
//! with SIGKILL at every second write: before the write is sent, once it is committed, and after the reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use oarlock_scenarios::host_process::HostProcess;
use oarlock_scenarios::test_cluster::{TestCluster, real_plane};
use oarlock_search::crash::flows::judge::{Expected, judge};
use oarlock_search::crash::flows::subject::{self, Subject};
use oarlock_search::crash::script::Kind;
use oarlock_sim::world::History;
use oarlock_support::accounts::Account;
use oarlock_support::control_plane::{self, ControlPlane};
use oarlock_support::faults::{Plan, When};
use oarlock_support::interception::{Interceptor, WriteRecord};
use oarlock_support::proxy::Proxy;

use super::{ALONE, IGNORED, KILLS, kinds, moments};

const ENDED: Duration = Duration::from_secs(240);
const QUIET: Duration = Duration::from_secs(5);
/// Number of planned writes; more than the host makes.
const WRITES: u64 = 600;

/// One object in its own namespace.
struct Side {
    cluster: TestCluster,
    history: History,
    subject: Subject,
    expected: Expected,
    targets: Vec<(String, String)>,
    is_mended: bool,
}

impl Side {
    async fn plant(plane: &Arc<ControlPlane>, subject: Subject) -> anyhow::Result<Self> {
        let cluster = TestCluster::real(plane.clone(), &format!("{subject:?}").to_lowercase()).await?;
        let (_, targets) = subject.plant(&cluster).await?;
        let history = History::record(&cluster.client, subject::recorded());
        let expected = subject.expected(&cluster.namespace);
        Ok(Self { cluster, history, subject, expected, targets, is_mended: false })
    }

    /// Mends the object once it has failed. Returns true once the object has ended and its expired children are gone.
    async fn look(&mut self) -> anyhow::Result<bool> {
        let versions = self.history.versions();
        if !self.is_mended && subject::wants_mending(&self.cluster.namespace, &versions) {
            subject::mend(&self.cluster).await?;
            self.is_mended = true;
        }
        Ok(self.expected.has_ended(&versions) && self.expected.is_clean(&versions))
    }

    fn judge(&self) -> Vec<String> {
        let mut breaches = judge(&self.history.versions(), &self.expected);
        breaches.extend(self.history.gaps().iter().map(|gap| format!("nobody saw all: {gap}")));
        let verdict = self.cluster.world.ledger().verdict(&self.targets);
        breaches.extend((!subject::is_right(&verdict)).then(|| format!("S1: {verdict}")));
        breaches.into_iter().map(|breach| format!("{:?}: {breach}", self.subject)).collect()
    }
}

/// Plans a kill at every second write. The three moments of a kill alternate.
fn plan(host: &HostProcess) -> anyhow::Result<Plan> {
    let moments = When::ALL.into_iter().cycle();
    Plan::new((1..WRITES).step_by(2).zip(moments).map(|(at, when)| Kind::Kill(when).fault(at, host.killer())))
}

/// Restarts the host after each kill, until both objects are at rest.
async fn until_at_rest(host: &HostProcess, interceptor: &Interceptor, sides: &mut [Side]) -> anyhow::Result<()> {
    let deadline = Instant::now() + ENDED;
    let mut looks = tokio::time::interval(Duration::from_millis(300));
    let (mut all_ended, mut last) = (false, (interceptor.count(), Instant::now()));
    loop {
        tokio::select! {
            () = host.killed() => host.begin()?,
            _ = looks.tick() => {
                host.check()?;
                if !all_ended {
                    all_ended = true;
                    for side in sides.iter_mut() {
                        all_ended &= side.look().await?;
                    }
                }
                if !all_ended || interceptor.count() != last.0 {
                    last = (interceptor.count(), Instant::now());
                } else if last.1.elapsed() >= QUIET {
                    return Ok(());
                }
                anyhow::ensure!(Instant::now() < deadline, "they never come to rest; the host's log ends with\n{}", host.tail());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_and_a_daemon_job_make_each_job_once_though_the_host_is_killed_thirty_times() -> anyhow::Result<()> {
    let _alone = ALONE.lock().await;
    let began = Instant::now();
    let options = control_plane::Options {
        controllers: vec![control_plane::GARBAGE_COLLECTOR, control_plane::JOB, control_plane::TTL_AFTER_FINISHED],
        ..control_plane::Options::default()
    };
    let plane = real_plane(options).await?;
    let mut sides = futures::future::try_join_all(Subject::ALL.map(|subject| Side::plant(&plane, subject))).await?;
    let proxy = Proxy::start(plane.config(Account::Host).await?, Interceptor::new(Plan::none(), &IGNORED)).await?;
    let host = HostProcess::start(&plane, &proxy.url()).context("the host does not start")?;
    proxy.interceptor().restart(plan(&host)?);
    let planted = began.elapsed();
    for side in &sides {
        side.subject.begin(&side.cluster, &side.targets).await?;
    }
    let rested = until_at_rest(&host, proxy.interceptor(), &mut sides).await;
    host.end();
    let writes: Vec<WriteRecord> = proxy.interceptor().records();
    let (kills, moments) = (host.kills(), moments(&writes));
    println!(
        "flows: {} writes, {kills} kills, {moments:?}; planted {planted:.0?}, all {:.0?}\n{:#?}",
        writes.len(),
        began.elapsed(),
        kinds(&writes)
    );
    let mut breaches: Vec<String> = rested.err().map(|error| format!("L1: {error:#}")).into_iter().collect();
    breaches.extend(sides.iter().flat_map(Side::judge));
    anyhow::ensure!(breaches.is_empty(), "{}", breaches.join("\n"));
    anyhow::ensure!(kills >= KILLS && moments.len() == When::ALL.len(), "too few kills: {kills}, {moments:?}");
    Ok(())
}
