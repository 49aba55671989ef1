//! Sends the job and the first changes of each target to the API server as dry runs.

use std::time::Duration;

use futures::StreamExt as _;
use oarlock_core::requests::writes::{Stopped, Write};
use oarlock_view::{JobPlan, ServerAnswer};

use super::job_file::PlannedJob;
use super::report::Progress;
use crate::commands::jobs::JobClient;
use crate::preview::{PreviewSetup, PreviewedTarget};

/// The number of concurrent requests, the same as a host sends.
const AT_ONCE: usize = 32;
/// The number of attempts for one request while the API server is busy.
const TRIES: u32 = 5;

/// Sends the dry run of the job, and returns the answer.
pub(super) async fn ask_for_job(client: &JobClient, job: &PlannedJob) -> ServerAnswer {
    match client.try_create(job.written()).await {
        Ok(_) => ServerAnswer { accepted: true, message: String::new() },
        Err(error) => ServerAnswer { accepted: false, message: format!("{error:#}") },
    }
}

/// Sends the dry runs of the first changes of the targets, and adds the answers to the plan.
pub(super) async fn ask_for_targets(
    stage: &PreviewSetup,
    targets: &[PreviewedTarget],
    plan: &mut JobPlan,
    progress: &Progress,
) {
    let own =
        |(index, target): (usize, &PreviewedTarget)| apart(&target.writes).into_iter().map(move |write| (index, write));
    let asked: Vec<(usize, Write)> = targets.iter().enumerate().flat_map(own).collect();
    let count = asked.len();
    let tries = asked.into_iter().map(|(index, write)| async move { (index, answer_to(stage, &write).await) });
    let mut answers = futures::stream::iter(tries).buffer_unordered(AT_ONCE);
    let mut done = 0;
    while let Some((index, answer)) = answers.next().await {
        done += 1;
        progress.requests(done, count);
        // A target shows one answer. A refusal of one of its changes replaces the acceptance of others.
        if let Some(target) = plan.targets.get_mut(index)
            && target.server.as_ref().is_none_or(|known| known.accepted)
        {
            target.server = Some(answer);
        }
    }
}

/// Returns the writes that can be tried alone on the current objects. Leaves out a write that tests for the result of
/// an earlier one.
fn apart(writes: &[Write]) -> Vec<Write> {
    let builds_on_earlier = |(at, write): &(usize, &Write)| {
        let tests = matches!(write, Write::Patch { body, .. } if body.is_array());
        tests && writes.iter().take(*at).any(|earlier| earlier.object() == write.object())
    };
    let apart = writes.iter().enumerate().filter(|both| !builds_on_earlier(both));
    apart.map(|(_, write)| write.clone()).collect()
}

async fn answer_to(stage: &PreviewSetup, write: &Write) -> ServerAnswer {
    let mut tries = 1;
    loop {
        match stage.cluster.try_write(write).await {
            Ok(()) => return ServerAnswer { accepted: true, message: String::new() },
            Err(Stopped::Throttled { retry_after }) if tries < TRIES => {
                tries += 1;
                tokio::time::sleep(Duration::from_secs(retry_after.unwrap_or(1).into())).await;
            }
            Err(stopped) => return ServerAnswer { accepted: false, message: describe(stopped) },
        }
    }
}

fn describe(stopped: Stopped) -> String {
    match stopped {
        Stopped::Gone => "the object is not there any more".to_owned(),
        Stopped::Conflict => "the object has changed since it was listed; plan again".to_owned(),
        Stopped::Blocked { message, .. } | Stopped::Refused { message } | Stopped::Forbidden { message, .. } => message,
        Stopped::Throttled { .. } => "it is too busy to say, or cannot be reached".to_owned(),
        Stopped::Unknown { message } => format!("no answer: {message}"),
        Stopped::NotSent | Stopped::LostLease => "it was not asked".to_owned(),
    }
}
