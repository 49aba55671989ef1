//! Misfits: one bad input after the other beside a good job, which must not notice.
//!
//! Takes a table of misfits, each with what its owner is to be told; yields who noticed, misfit by misfit. The good job is of
//! another plugin and has pods of its own, and its time counts in the host's own steps alone: nothing of the world is in it.
//! May not judge two misfits together.

/// Plugin files that are none, or not what they say.
pub mod files;
/// Grants of a plugin that has gone wrong.
pub mod grants;
/// The ground that misfits and their neighbours share.
mod ground;
/// Jobs that are stored past admission.
pub mod jobs;
/// What a plugin does at its calls.
pub mod misdeeds;
/// Pods that are made to be targets.
pub mod pods;
/// Statuses and records that somebody else wrote.
pub mod statuses;
/// What a misfit's owner is told.
mod told;

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use ground::{Cost, Ground};

/// One bad input.
pub struct Misfit {
    /// What is wrong with it.
    pub name: String,
    /// How it comes about.
    pub begin: Begin,
    /// What its owner is told, where he looks.
    pub told: Told,
}

/// How a misfit comes about.
pub enum Begin {
    /// A job of the hostile plugin, with this parameter `do`.
    Misdeed(String),
    /// The same in `release`: the changes to its pod are refused until its time is over.
    InRelease(String),
    /// A file is dropped.
    File(Box<dyn Fn() -> anyhow::Result<Vec<u8>> + Send + Sync>),
    /// The hostile plugin is granted this `spec`, and a job of it is created.
    Grant(&'static str),
    /// A job with this content is stored past admission. `POD` stands for the pod of the misfit.
    Job(Value),
    /// A job in flight is edited past admission.
    Edit(Value),
    /// The pod is changed so, and a job of the shipped plugin names it, with further fields of its spec.
    Pod(Value, Value),
    /// The status of a job in flight is overwritten.
    Status(Value),
    /// The record of a job in flight is overwritten.
    Record(Value),
    /// No misfit: something that harms the neighbours, to show that the check notices.
    Harm(Harm),
}

/// What no misfit may do.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// The good job's writes take half a second each.
    Delay,
    /// A pod that no job names is changed.
    Touch,
    /// Nothing: its owner is told nothing either.
    Silence,
}

/// What the owner of a misfit is told.
pub enum Told {
    /// How progress and reason of its target begin, such as `Failed/PluginTrapped`.
    Target(&'static str),
    /// Type, and status with reason, of a condition of its job; and words of its message.
    Condition(&'static str, &'static str, &'static str),
    /// The reason of an event on its job.
    Event(&'static str),
    /// The reason in the state of the plugin.
    Plugin(&'static str),
    /// Words of the sentence by which the API server or the host refuses it.
    Refused(&'static str),
    /// Its job ends so: what was wrong is mended.
    Ends(&'static str),
    /// Nothing: it is no misfit.
    Nothing,
}

impl Misfit {
    /// A misfit of this name.
    pub fn new(name: impl Into<String>, begin: Begin, told: Told) -> Self {
        Self { name: name.into(), begin, told }
    }
}

/// Somebody who noticed a misfit, or its owner who was told nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The misfit.
    pub misfit: String,
    /// Who noticed what.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.misfit, self.what)
    }
}

/// What came out of a table.
#[derive(Debug)]
pub struct Outcome {
    /// How many misfits were tried.
    pub tried: usize,
    /// Who noticed.
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

/// Tries each misfit of a table beside the good job, and at last a restart with all of them that stay.
///
/// # Errors
/// If the ground itself does not stand, which is no finding.
pub async fn judge(table: &[Misfit]) -> anyhow::Result<Outcome> {
    let mut ground = Ground::stand().await?;
    let alone = ground.calm().await?;
    let mut outcome = Outcome { tried: 0, found: Vec::new(), alone, beside: alone };
    for (number, misfit) in table.iter().enumerate() {
        outcome.tried += 1;
        let noticed = ground.beside(misfit, number, &mut outcome.beside).await;
        let noticed = noticed.into_iter().map(|what| Finding { misfit: misfit.name.clone(), what });
        outcome.found.extend(noticed);
    }
    if let Err(what) = ground.again().await {
        outcome.found.push(Finding { misfit: "all of them, after a restart".to_owned(), what: format!("{what:#}") });
    }
    ground.end().await?;
    Ok(outcome)
}

/// The longest that the good job may take, where it takes this long alone: a tenth more, or two looks of this test.
fn at_most(alone: Duration) -> Duration {
    alone.mul_f64(1.1).max(alone + Duration::from_millis(100))
}
