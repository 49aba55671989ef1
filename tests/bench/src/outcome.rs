//! What became of the targets of one job, by the ledger of the world and by its status.
//!
//! Takes a scene and a job on all its pods; yields figures. May not judge.

use serde_json::{Map, Value, json};

use crate::job_watch::Version;
use crate::scene::Scene;
use crate::site::longest;

/// The outcome of a job that has ended or was given up: `wrong` are targets that were not replaced exactly once, and other pods
/// that were lost, by the ledger; `failed` those that the status calls failed; `stuck` those that it does not call ended.
pub(crate) async fn of(scene: &Scene<'_>, job: &str) -> Map<String, Value> {
    let targets = scene.planted.targets.len();
    let last = scene.watch.of(job).pop();
    let ended = last.as_ref().map_or(0, Version::ended);
    if ended == targets {
        // The world's own watches may be behind; where they stay so, the verdict tells.
        let _ = scene.site.world.settled(&scene.planted.set, longest(targets)).await;
    }
    let verdict = scene.site.world.ledger().verdict(&scene.planted.targets);
    let wrong = verdict.targets.iter().filter(|fate| !fate.is_right()).count() + verdict.others_lost.len();
    let mut figures = Map::new();
    figures.insert("wrong".to_owned(), wrong.into());
    figures.insert("failed".to_owned(), json!(last.and_then(|last| last.status.failed_pod_count).unwrap_or(0)));
    figures.insert("stuck".to_owned(), targets.saturating_sub(ended).into());
    let clean = if verdict.is_clean() { "clean".to_owned() } else { verdict.to_string() };
    figures.insert("verdict".to_owned(), clean.into());
    figures
}
