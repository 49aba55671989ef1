//! The acts of the story of pods, in order: a plan, operations within bounds, a pause, a failure and a resume.
//!
//! Host and world are driven only as a user could drive them, but for one container that the world is told to break. What
//! came of it is judged by the versions of the pods and by the world's ledger ([`observed`]), never by a job's status.

mod careful;
mod observed;
mod restart;
mod rolling;

use std::time::Duration;

use self::observed::Observations;
use super::checks::Checks;
use super::play::Play;
use super::stage::Scenery;

/// What is on the stage.
pub(super) const SCENERY: Scenery = Scenery {
    plugins: &["replace", "restart"],
    grants: include_str!("../../../../plugins/restart/grant.yaml"),
    collaset: 5,
    deployment: 6,
    nodes: 3,
    kruise: true,
    rest: false,
};

/// The world's watches and ours may be a moment behind what a job already knows.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// The story while it is told.
struct PodActs<'a> {
    play: &'a Play,
    seen: Observations,
    checks: Checks,
    acts: u32,
}

/// Tells the story; yields whether all its checks hold.
pub(super) async fn tell(play: &Play) -> anyhow::Result<bool> {
    let seen = Observations::begin(&play.stage);
    let mut acts = PodActs { play, seen, checks: Checks::default(), acts: 0 };
    let told = acts.all().await;
    acts.play.screen.title("Results, by the pods and the ledger of the simulated world").await?;
    acts.play.screen.say(&acts.checks.to_string()).await?;
    told.map(|()| acts.checks.all_hold())
}

impl PodActs<'_> {
    async fn all(&mut self) -> anyhow::Result<()> {
        self.begin().await?;
        self.plan().await?;
        self.rolling().await?;
        self.restart().await?;
        let careful = self.pause().await?;
        self.failure(&careful).await?;
        self.resume(&careful).await
    }

    async fn begin(&self) -> anyhow::Result<()> {
        let told = "A Kubernetes API in memory, with a Deployment web of 6 pods, a CollaSet foo of 5, OpenKruise, and a host that\n\
                    gets the plugins Replace and Restart.";
        self.play.screen.say(told).await?;
        for (plugin, action) in [("replace", "Replace"), ("restart", "Restart")] {
            self.play.drop_plugin(plugin).await?;
            self.play.stage.wait_until_serving(action).await?;
            self.play.stage.wait_until_said(action).await?;
        }
        Ok(())
    }

    /// Begins an act: its title, numbered, and what it shows.
    async fn act(&mut self, title: &str, shows: &str) -> anyhow::Result<()> {
        self.acts = self.acts.saturating_add(1);
        self.play.screen.title(&format!("{}. {title}", self.acts)).await?;
        self.play.screen.say(shows).await
    }

    /// Notes what was observed, whether it is as it was said, and shows it.
    async fn check(&mut self, holds: bool, observed: &str) -> anyhow::Result<()> {
        let line = self.checks.add(holds, observed);
        self.play.screen.say(&line).await
    }
}
