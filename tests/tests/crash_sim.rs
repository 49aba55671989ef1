//! Jobs of every kind with trouble at every write, on the in-memory API: the host is killed at each of three moments, or its
//! write is refused, loses its reply or times out.
//!
//! A run without trouble counts the writes first, so that "every" is a fact. Time is paused and everything comes from one
//! seed, so that a point which fails fails again. A test run takes the beginning of the list; `cargo xtask soak` takes all.

use std::time::Duration;

use oarlock_tests::crash::{flows, points, schedule, sweep};
use parking_lot::{Mutex, MutexGuard};

/// One at a time: each takes all cores, and has a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

#[test]
fn jobs_of_every_kind_survive_every_trouble_at_every_write() -> anyhow::Result<()> {
    let _alone = alone();
    let floor = if sweep::is_soak() { 2_000 } else { 600 };
    sweep::sweep("every trouble at every write", &points::all()?, floor, Duration::from_secs(120))?;
    let floor = if sweep::is_soak() { 500 } else { 100 };
    sweep::sweep("every trouble of jobs on nodes", &points::on_nodes()?, floor, Duration::from_secs(40))?;
    sweep::sweep("every trouble of a job in records", &points::recorded()?, 8, Duration::from_secs(30))
}

/// A JobFlow of ten steps and a DaemonJob of twenty nodes, four at a time: no child is made twice, none is forgotten, and none
/// begins before its turn.
#[test]
fn flows_and_daemon_jobs_survive_every_trouble_at_every_write() -> anyhow::Result<()> {
    let _alone = alone();
    let floor = if sweep::is_soak() { 800 } else { 100 };
    sweep::sweep("every trouble of flows", &flows::points::all()?, floor, Duration::from_secs(60))
}

/// `OARLOCK_SEED=17 cargo test …` plays that one.
#[test]
fn jobs_survive_whatever_a_thousand_seeds_have_for_them() -> anyhow::Result<()> {
    let _alone = alone();
    sweep::schedules("schedules", schedule::ON_PODS, if sweep::is_soak() { 20_000 } else { 1_000 })
}

/// The same for reboots and checks of nodes.
#[test]
fn jobs_on_nodes_survive_whatever_a_hundred_seeds_have_for_them() -> anyhow::Result<()> {
    let _alone = alone();
    sweep::schedules("schedules on nodes", schedule::ON_NODES, if sweep::is_soak() { 2_000 } else { 100 })
}
