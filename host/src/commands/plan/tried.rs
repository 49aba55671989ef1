//! What the API server says to a plan: it is asked to try the job, and the first changes of each target, without making them.

use std::time::Duration;

use futures::StreamExt as _;
use oarlock_core::cluster::writes::{Stopped, Write};
use oarlock_view::{JobPlan, ServerAnswer};

use super::job_file::PlannedJob;
use super::report::Progress;
use crate::commands::jobs::JobClient;
use crate::rehearsal::{RehearsedTarget, Stage};

/// Requests at once: as many as a host has on the wire.
const AT_ONCE: usize = 32;
/// Tries of one request while the API server is busy.
const TRIES: u32 = 5;

/// Asks, and notes the answers in the plan.
///
/// # Errors
///
/// If the API server is not reached.
pub(super) async fn ask(
    client: &JobClient,
    stage: &Stage,
    (job, targets): (&PlannedJob, &[RehearsedTarget]),
    plan: &mut JobPlan,
    progress: &Progress,
) -> anyhow::Result<()> {
    let answer = client.try_create(job.written()).await;
    plan.server = Some(match answer {
        Ok(_) => ServerAnswer { accepted: true, message: String::new() },
        Err(error) => ServerAnswer { accepted: false, message: format!("{error:#}") },
    });
    let own =
        |(index, target): (usize, &RehearsedTarget)| apart(&target.writes).into_iter().map(move |write| (index, write));
    let asked: Vec<(usize, Write)> = targets.iter().enumerate().flat_map(own).collect();
    let count = asked.len();
    let tries = asked.into_iter().map(|(index, write)| async move { (index, answer_to(stage, &write).await) });
    let mut answers = futures::stream::iter(tries).buffer_unordered(AT_ONCE);
    let mut done = 0;
    while let Some((index, answer)) = answers.next().await {
        done += 1;
        progress.requests(done, count);
        // Of several changes of one target, one that is refused speaks for all.
        if let Some(target) = plan.targets.get_mut(index)
            && target.server.as_ref().is_none_or(|known| known.accepted)
        {
            target.server = Some(answer);
        }
    }
    Ok(())
}

/// The writes that can be tried one by one on the objects as they are: what tests for the outcome of an earlier one cannot.
fn apart(writes: &[Write]) -> Vec<Write> {
    let builds_on_earlier = |(at, write): &(usize, &Write)| {
        let tests = matches!(write, Write::Patch { body, .. } if body.is_array());
        tests && writes.iter().take(*at).any(|earlier| earlier.object() == write.object())
    };
    let apart = writes.iter().enumerate().filter(|both| !builds_on_earlier(both));
    apart.map(|(_, write)| write.clone()).collect()
}

async fn answer_to(stage: &Stage, write: &Write) -> ServerAnswer {
    let mut tries = 1;
    loop {
        match stage.cluster.try_write(write).await {
            Ok(()) => return ServerAnswer { accepted: true, message: String::new() },
            Err(Stopped::Throttled { retry_after }) if tries < TRIES => {
                tries += 1;
                tokio::time::sleep(Duration::from_secs(retry_after.unwrap_or(1).into())).await;
            }
            Err(stopped) => return ServerAnswer { accepted: false, message: words(stopped) },
        }
    }
}

fn words(stopped: Stopped) -> String {
    match stopped {
        Stopped::Gone => "the object is not there any more".to_owned(),
        Stopped::Conflict => "the object has changed since it was listed; plan again".to_owned(),
        Stopped::Blocked { message, .. } | Stopped::Refused { message } => message,
        Stopped::Throttled { .. } => "it is too busy to say".to_owned(),
        Stopped::Unknown { message } => format!("no answer: {message}"),
        Stopped::NotSent | Stopped::LostLease => "it was not asked".to_owned(),
    }
}
