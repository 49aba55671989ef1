//! Measures the CPU time of one plan, without a cluster.
//!
//! The times are milliseconds of CPU time of this thread, at three moments of an object: when all Jobs must be created, while half
//! of them run, and when the last one has ended. A round is a plan and the status that follows from it.

use oarlock_core::attempts::header::Header;
use oarlock_core::attempts::parent::ParentKind;
use oarlock_core::attempts::status::{StatusInput, report};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use crate::flows::loads::{daemon_spec, wide_spec};
use crate::flows::planned::Planned;
use crate::spread::{quantile, round};

/// How often each moment is planned.
const TIMES: usize = 200;

/// Measures a wide flow with this many steps.
pub(crate) fn of_flow(steps: usize) -> Option<Value> {
    figures(Planned::new(ParentKind::Flow, ("bench", "flow"), &wide_spec(steps), &[])?)
}

/// Measures a DaemonJob on this many nodes.
pub(crate) fn of_daemon(nodes: usize) -> Option<Value> {
    let names: Vec<String> = (0..nodes).map(|index| format!("node-{index:04}")).collect();
    figures(Planned::new(ParentKind::Daemon, ("bench", "daemon"), &daemon_spec(), &names)?)
}

fn figures(mut planned: Planned) -> Option<Value> {
    let mut figures = Map::new();
    let mut all = Vec::new();
    let mut moment = |name: &str, planned: &Planned| {
        let [plans, rounds] = timed(planned);
        figures.insert(format!("{name}PlanP50Milliseconds"), json!(quantile(&plans, 0.5).map(round)));
        figures.insert(format!("{name}PlanP99Milliseconds"), json!(quantile(&plans, 0.99).map(round)));
        figures.insert(format!("{name}RoundP99Milliseconds"), json!(quantile(&rounds, 0.99).map(round)));
        all.extend(plans);
    };
    moment("first", &planned);
    let plan = planned.plan();
    planned.take(plan);
    planned.see(|index| index % 2 == 0);
    moment("half", &planned);
    let plan = planned.plan();
    planned.take(plan);
    planned.see(|_| true);
    let plan = planned.plan();
    planned.take(plan);
    planned.see(|_| true);
    moment("ended", &planned);
    figures.insert("planP99Milliseconds".to_owned(), quantile(&all, 0.99).map(round)?.into());
    Some(json!({ "host": figures }))
}

/// Returns the CPU times of plans, and of plans with their status, in milliseconds.
fn timed(planned: &Planned) -> [Vec<f64>; 2] {
    let once = || {
        let begun = cpu();
        let plan = planned.plan();
        let planned_at = cpu();
        let header = Header { state: plan.summary.state.clone(), ..plan.header.clone() };
        let (parent, children) = (&planned.parent, &planned.children);
        let status =
            report(StatusInput { parent, units: &plan.units, header: &header, summary: &plan.summary, children });
        let ended = cpu();
        std::hint::black_box((plan, status));
        ((planned_at - begun) * 1000.0, (ended - begun) * 1000.0)
    };
    let (plans, rounds) = (0..TIMES).map(|_| once()).unzip();
    [plans, rounds]
}

/// Returns the CPU time of this thread so far, in seconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_timed_at_every_moment() {
        for figures in [of_flow(6), of_daemon(6)] {
            let figures = figures.unwrap();
            for name in ["firstPlanP99Milliseconds", "halfRoundP99Milliseconds", "endedPlanP50Milliseconds"] {
                assert!(figures["host"][name].as_f64().is_some_and(|time| time > 0.0), "{name}: {figures}");
            }
        }
    }
}
