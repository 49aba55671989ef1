//! The bench of JobFlows and DaemonJobs: their cost beside a bare client that makes the same creates.
//!
//! Each measure gets a table, with the goals beside the reached figures.

pub(crate) mod arguments;
pub(crate) mod bare;
mod cluster;
mod contest;
mod kubelet;
mod large;
mod loads;
mod planned;
mod plans;
mod watch;

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::backend::Backend;
use crate::flows::arguments::{Flows, Measure};
use crate::flows::contest::Contest;
use crate::flows::loads::Load;
use crate::goals::{self, Goal};
use crate::spread;

const NOTES: &str = "\
Targets are Jobs. The bare client is a process of its own that makes the same creates with 32 in flight, each as soon as a watch
brought the end of what it waits for. Both are measured by the same watches of the bench; seconds are from the first create of a
user (or from the bare client's begin) until a watch brought the last Job, or its end. Jobs end at once: on a real control plane
kube-controller-manager makes their pods and the bench is the kubelet, in memory the simulated world is both.
- cpu, apiServerCpu, kibReceived, requests: until the contender last wrote, per Job, as for operations; events are among them.
- decidedToCreated: from the watch's word that a Job has ended to its word that the next one of the chain is there, so two
  requests and two watch events are part of it.
- statusWritesPerSecondAndObject: those beyond the burst of three, over the whole time until all had succeeded.
- kibPerNode and kibPerChild: from what is resident in freshly started hosts. A child that has ended counts with its unit.
- heartbeats: each node sends its status every five minutes, as a kubelet does whose node does not change.
- first, half, ended: plans when all Jobs have to be created, when half of them have ended, and when all have. A round is a plan
  with its status.";

const BESIDE_BARE: Goal =
    Goal { figure: "/ratios/createdSeconds", name: "all Jobs created, to the bare client", goal: "at most 1.25" };
const STATUS: Goal = Goal {
    figure: "/host/statusWritesPerSecondAndObject",
    name: "status writes per second and object",
    goal: "at most 1",
};
const RECORDS: Goal =
    Goal { figure: "/host/recordWritesPerSecondAndRecord", name: "writes per second and record", goal: "at most 0.5" };
const P50: Goal =
    Goal { figure: "/host/decidedToCreatedP50Milliseconds", name: "decided to created, p50, ms", goal: "at most 20" };
const P99: Goal =
    Goal { figure: "/host/decidedToCreatedP99Milliseconds", name: "decided to created, p99, ms", goal: "at most 100" };
const CREATES: Goal = Goal { figure: "/host/requests/create jobs", name: "creates per child", goal: "1" };

const OF_DAEMON: [Goal; 4] = [BESIDE_BARE, CREATES, STATUS, RECORDS];
const OF_WIDE: [Goal; 3] = [BESIDE_BARE, CREATES, STATUS];
const OF_CHAIN: [Goal; 4] = [P50, P99, CREATES, STATUS];
const OF_CROWD: [Goal; 6] = [
    Goal { figure: "/ratios/decidedSeconds", name: "all Jobs ended, to the bare client", goal: "at most 1.25" },
    Goal { figure: "/host/objectsPerMinute", name: "flows per minute", goal: "at least 100" },
    P50,
    P99,
    CREATES,
    STATUS,
];
const OF_LARGE: [Goal; 8] = [
    Goal {
        figure: "/host/createdToOwnSmaller",
        name: "time to the smaller one's own",
        goal: "at most 1.1 times the nodes",
    },
    CREATES,
    STATUS,
    RECORDS,
    Goal { figure: "/host/kibPerChild", name: "KiB per cached child", goal: "at most 2" },
    Goal { figure: "/host/kibPerNode", name: "KiB per node", goal: "at most 1" },
    Goal { figure: "/host/writesAfterTheEnd", name: "writes after the end", goal: "0" },
    Goal { figure: "/host/heartbeatsCpuPercent", name: "CPU while nodes send heartbeats, %", goal: "at most 2" },
];
const OF_SMALL_PLAN: [Goal; 1] =
    [Goal { figure: "/host/planP99Milliseconds", name: "CPU of a plan, p99, ms", goal: "at most 5 at 200 units" }];
const OF_LARGE_PLAN: [Goal; 1] =
    [Goal { figure: "/host/planP99Milliseconds", name: "CPU of a plan, p99, ms", goal: "at most 25 at 5,000 units" }];

/// Runs the bench.
///
/// # Errors
/// If a cluster cannot be started, or a contender does not finish.
pub(crate) async fn run(asked: &Flows, components: &Path) -> anyhow::Result<Value> {
    let mut runs = Vec::new();
    let [nodes, large, steps, flows] =
        [asked.nodes, asked.large, asked.steps, asked.flows].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    let mut own = None;
    for measure in asked.measures() {
        if measure == Measure::Plans {
            let small = tokio::task::spawn_blocking(move || plans::of_flow(steps)).await?.context("it has no plan")?;
            runs.push(told("plan of a wide flow", steps, vec![small], &OF_SMALL_PLAN));
            let big = tokio::task::spawn_blocking(move || plans::of_daemon(large)).await?.context("it has no plan")?;
            runs.push(told("plan of a large DaemonJob", large, vec![big], &OF_LARGE_PLAN));
            continue;
        }
        // Each measure gets a new store, without the data that others left.
        let backend = Backend::for_flows(asked.on).await?;
        let place = (&backend, components);
        match measure {
            Measure::Plans => {}
            Measure::Daemon => {
                let run = beside_bare(asked, place, ("daemon", &loads::daemon(nodes)), &OF_DAEMON).await?;
                let median = run.pointer("/spread/host/createdSeconds/median").and_then(Value::as_f64);
                own = median.map(|seconds| (seconds, nodes));
                runs.push(run);
            }
            Measure::Wide => runs.push(beside_bare(asked, place, ("wide", &loads::wide(steps)), &OF_WIDE).await?),
            Measure::Crowd => {
                runs.push(beside_bare(asked, place, ("crowd", &loads::chains(flows, 10)), &OF_CROWD).await?);
            }
            Measure::Chain => runs.push(beside_bare(asked, place, ("chain", &loads::chains(4, 25)), &OF_CHAIN).await?),
            Measure::Large => {
                let (jobs, round) = large::run(asked, place, own).await?;
                runs.push(told("large DaemonJob", jobs, vec![round], &OF_LARGE));
            }
        }
    }
    Ok(json!({"bench": "flows", "on": asked.on.word(), "runs": runs, "notes": NOTES}))
}

async fn beside_bare(
    asked: &Flows,
    (backend, components): (&Backend, &Path),
    (word, load): (&str, &Load),
    goals: &[Goal],
) -> anyhow::Result<Value> {
    let contest = Contest { backend, components, load, word };
    let mut rounds = Vec::new();
    for number in 1..=asked.rounds {
        rounds.push(contest.round(number).await?);
    }
    Ok(told(&load.label, load.jobs, rounds, goals))
}

/// Returns a run with its spread and goals.
fn told(label: &str, jobs: usize, rounds: Vec<Value>, goals: &[Goal]) -> Value {
    let spread = spread::of(&rounds.iter().collect::<Vec<_>>());
    goals::beside(json!({"mode": label, "targets": jobs, "rounds": rounds, "spread": spread}), goals)
}
