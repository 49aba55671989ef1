//! A cluster in memory whose hosts are scraped once a minute of paused time.

use std::time::Duration;

use super::promtool;
use super::timeline::Timeline;
use crate::test_cluster::TestCluster;

/// A cluster, and the scrapes of its hosts.
pub struct Scene {
    /// The cluster.
    pub cluster: TestCluster,
    /// The scrapes so far.
    pub timeline: Timeline,
    /// The names of the hosts of the last scrape.
    known: Vec<String>,
}

impl Scene {
    /// Begins a scene on an empty cluster. Must be called under paused time.
    ///
    /// # Errors
    /// If the CRDs and policies cannot be installed.
    pub async fn begin() -> anyhow::Result<Self> {
        Ok(Self { cluster: TestCluster::sim(1).await?, timeline: Timeline::default(), known: Vec::new() })
    }

    /// Scrapes all running hosts.
    ///
    /// # Errors
    /// If a text is not in the format of `/metrics`.
    pub fn scrape(&mut self) -> anyhow::Result<()> {
        let hosts = self.cluster.hosts();
        for gone in self.known.iter().filter(|name| !hosts.iter().any(|host| host.identity() == *name)) {
            self.timeline.gone(gone);
        }
        for host in hosts {
            self.timeline.scrape(host.identity(), &host.host.metrics.text())?;
        }
        self.known = hosts.iter().map(|host| host.identity().to_owned()).collect();
        Ok(())
    }

    /// Lets minutes pass, with a scrape at the begin and the end of each.
    ///
    /// # Errors
    /// If a text is not in the format of `/metrics`.
    pub async fn pass(&mut self, minutes: usize) -> anyhow::Result<()> {
        self.scrape()?;
        for _ in 0..minutes {
            self.cluster.pass(Duration::from_secs(60)).await;
            self.timeline.pass(1);
            self.scrape()?;
        }
        Ok(())
    }

    /// Ends the scene, and checks that exactly these alerts have fired.
    ///
    /// # Errors
    /// If another alert fires, or if one of these does not.
    pub fn fires(self, alerts: &[&str]) -> anyhow::Result<()> {
        promtool::fires(&self.timeline, alerts)
    }
}
