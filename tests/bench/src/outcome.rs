//! The outcome of one job on all pods of a setup, by the event log of the simulated cluster and by the job's status.

use serde_json::{Map, Value, json};

use crate::bench_cluster::longest;
use crate::job_watch::Version;
use crate::setup::HostSetup;

/// Returns the outcome of a job that has ended or was given up.
///
/// `wrong` counts targets that were not replaced exactly once, and other pods that were lost, by the event log. `failed` counts
/// targets that failed by the status. `stuck` counts targets that have not ended by the status.
pub(crate) async fn of(setup: &HostSetup<'_>, job: &str) -> Map<String, Value> {
    let targets = setup.serving.targets.len();
    let last = setup.watch.of(job).pop();
    let ended = last.as_ref().map_or(0, Version::ended);
    if ended == targets {
        // The simulated cluster's own watches may be behind. If they stay behind, the verdict shows it.
        let _ = setup.cluster.world.settled(&setup.serving.set, longest(targets)).await;
    }
    let verdict = setup.cluster.world.ledger().verdict(&setup.serving.targets);
    let wrong = verdict.targets.iter().filter(|fate| !fate.is_right()).count() + verdict.others_lost.len();
    let mut figures = Map::new();
    figures.insert("wrong".to_owned(), wrong.into());
    figures.insert("failed".to_owned(), json!(last.and_then(|last| last.status.failed_pod_count).unwrap_or(0)));
    figures.insert("stuck".to_owned(), targets.saturating_sub(ended).into());
    let clean = if verdict.is_clean() { "clean".to_owned() } else { verdict.to_string() };
    figures.insert("verdict".to_owned(), clean.into());
    figures
}
