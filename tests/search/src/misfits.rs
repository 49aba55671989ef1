//! Misfits: bad inputs, one after the other, beside a good job that must not be affected.
//!
//! Takes a table of misfits, each with the message that its owner must get; yields the effects of each misfit on others. The
//! good job uses another plugin and its own pods. Its time counts the host's own steps only, not those of the simulated
//! cluster. May not judge two misfits together.

/// Plugin files that are no plugins, or that are not what they claim.
pub mod files;
/// Grants of a misbehaving plugin.
pub mod grants;
/// Jobs that are stored without admission.
pub mod jobs;
/// The misdeeds of a plugin in its calls.
pub mod misdeeds;
/// Pods that are created as targets.
pub mod pods;
/// The cluster that misfits and their neighbours share.
mod shared_cluster;
/// Statuses and records that another writer overwrote.
pub mod statuses;
/// The messages that a misfit's owner gets.
mod told;

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use shared_cluster::{Cost, SharedCluster};

/// One bad input.
pub struct Misfit {
    /// The defect, as a name.
    pub name: String,
    /// The way in which the test creates the misfit.
    pub begin: Begin,
    /// The message that the owner must get.
    pub told: Told,
}

/// The ways to create a misfit.
pub enum Begin {
    /// A job of the hostile plugin, with this parameter `do`.
    Misdeed(String),
    /// A misdeed in `release`. The interceptor refuses all patches of the pod, so that the target runs out of time.
    InRelease(String),
    /// A file is put into the plugin folder.
    File(Box<dyn Fn() -> anyhow::Result<Vec<u8>> + Send + Sync>),
    /// The hostile plugin gets a grant with this `spec`, and a job of that plugin is created.
    Grant(&'static str),
    /// A job with this content is stored without admission. `POD` stands for the pod of the misfit.
    Job(Value),
    /// A job in flight is edited without admission.
    Edit(Value),
    /// The pod gets this patch. A job of the shipped plugin, with these further fields in its spec, names the pod.
    Pod(Value, Value),
    /// The status of a job in flight is overwritten.
    Status(Value),
    /// The record of a job in flight is overwritten.
    Record(Value),
    /// No misfit, but a harm to the neighbours. It shows that the check notices a harm.
    Harm(Harm),
}

/// Harms that no misfit may cause.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// Each write of the good job takes half a second.
    Delay,
    /// A pod that no job names is changed.
    Touch,
    /// No harm, but the owner gets no message either.
    Silence,
}

/// The message that the owner of a misfit gets.
pub enum Told {
    /// The prefix of progress and reason of its target, such as `Failed/PluginTrapped`.
    Target(&'static str),
    /// The type of a condition of its job, the status with the reason, and words of the message.
    Condition(&'static str, &'static str, &'static str),
    /// The reason of an event on its job.
    Event(&'static str),
    /// The reason in the state of the plugin.
    Plugin(&'static str),
    /// Words in the message with which the API server or the host refuses the misfit.
    Refused(&'static str),
    /// The final progress of its job, after the defect was mended.
    Ends(&'static str),
    /// No message, because this is no misfit.
    Nothing,
}

impl Misfit {
    /// Returns a misfit of this name.
    pub fn new(name: impl Into<String>, begin: Begin, told: Told) -> Self {
        Self { name: name.into(), begin, told }
    }
}

/// An effect of a misfit on others, or a missing message to its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the misfit.
    pub misfit: String,
    /// The effect that the test found.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.misfit, self.what)
    }
}

/// The result of a table of misfits.
#[derive(Debug)]
pub struct Outcome {
    /// The number of misfits that were tried.
    pub tried: usize,
    /// The findings.
    pub found: Vec<Finding>,
    alone: Cost,
    beside: Cost,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tried, found, alone, beside } = self;
        write!(f, "{tried} misfits, {} noticed; the good job: {alone} alone, at most {beside}", found.len())?;
        found.iter().try_for_each(|finding| write!(f, "\n  {finding}"))
    }
}

/// Tries each misfit of a table beside the good job. Then restarts the host with all misfits that stay.
///
/// # Errors
/// If the test cluster itself fails, which is no finding.
pub async fn judge(table: &[Misfit]) -> anyhow::Result<Outcome> {
    let mut shared = SharedCluster::stand().await?;
    let alone = shared.calm().await?;
    let mut outcome = Outcome { tried: 0, found: Vec::new(), alone, beside: alone };
    for (number, misfit) in table.iter().enumerate() {
        outcome.tried += 1;
        let noticed = shared.beside(misfit, number, &mut outcome.beside).await;
        let noticed = noticed.into_iter().map(|what| Finding { misfit: misfit.name.clone(), what });
        outcome.found.extend(noticed);
    }
    if let Err(what) = shared.again().await {
        outcome.found.push(Finding { misfit: "all of them, after a restart".to_owned(), what: format!("{what:#}") });
    }
    shared.end().await?;
    Ok(outcome)
}

/// Returns the time limit of the good job, given its time alone: a tenth more, or two polls of this test.
fn at_most(alone: Duration) -> Duration {
    alone.mul_f64(1.1).max(alone + Duration::from_millis(100))
}
