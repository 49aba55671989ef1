//! Replaced versions of plugins that running jobs still use.
//!
//! The number of versions is limited, because each version keeps code in memory. Any user who may write plugin files can replace a file
//! again and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of sweeps for which a version stays after its last lookup. It is half an hour, three times the resync of a quiet job.
const KEPT_SWEEPS: u32 = 900;
/// The most versions. Above this number, the versions without recent lookups go first.
const MAX_VERSIONS: usize = 16;

/// The replaced versions by digest, each a `T`.
pub(crate) struct Draining<T> {
    versions: BTreeMap<String, DrainingVersion<T>>,
    /// A counter that rises with each version that is added or in use.
    uses: u64,
}

/// One replaced version.
pub(crate) struct DrainingVersion<T> {
    pub plugin: T,
    /// True once a job that is bound to the version has looked it up.
    pub asked: Arc<AtomicBool>,
    /// The number of sweeps since the last lookup.
    idle: u32,
    /// The value of the counter `uses` at the last use.
    used: u64,
}

impl<T> Default for Draining<T> {
    fn default() -> Self {
        Self { versions: BTreeMap::new(), uses: 0 }
    }
}

impl<T> Draining<T> {
    /// Adds a version, unless it exists already.
    pub(crate) fn add(&mut self, digest: &str, plugin: T) {
        self.uses = self.uses.saturating_add(1);
        let version = DrainingVersion { plugin, asked: Arc::default(), idle: 0, used: self.uses };
        self.versions.entry(digest.to_owned()).or_insert(version);
        self.note_lookups();
        let unused = self.versions.values().map(|version| version.used).min();
        if self.versions.len() > MAX_VERSIONS {
            self.versions.retain(|_, version| Some(version.used) != unused);
        }
    }

    /// Removes and returns the version with this digest.
    pub(crate) fn take(&mut self, digest: &str) -> Option<T> {
        self.versions.remove(digest).map(|version| version.plugin)
    }

    pub(crate) fn get_mut(&mut self, digest: &str) -> Option<&mut DrainingVersion<T>> {
        self.versions.get_mut(digest)
    }

    /// Removes the versions whose digests do not satisfy `keep`.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.versions.retain(|digest, _| keep(digest));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &DrainingVersion<T>)> {
        self.versions.iter()
    }

    /// Removes the versions that no job looked up lately. Returns true if it removed any.
    pub(crate) fn sweep(&mut self) -> bool {
        let before = self.versions.len();
        for version in self.versions.values_mut() {
            version.idle = version.idle.saturating_add(1);
        }
        self.note_lookups();
        self.versions.retain(|_, version| version.idle <= KEPT_SWEEPS);
        self.versions.len() != before
    }

    fn note_lookups(&mut self) {
        for version in self.versions.values_mut().filter(|version| version.asked.swap(false, Ordering::Relaxed)) {
            self.uses = self.uses.saturating_add(1);
            (version.idle, version.used) = (0, self.uses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(draining: &mut Draining<()>, digest: &str) {
        draining.get_mut(digest).unwrap().asked.store(true, Ordering::Relaxed);
    }

    fn digests(draining: &Draining<()>) -> Vec<&str> {
        draining.iter().map(|(digest, _)| digest.as_str()).collect()
    }

    #[test]
    fn a_version_that_a_quiet_job_uses_outlives_its_resync() {
        let mut draining = Draining::default();
        draining.add("quiet", ());
        draining.add("unused", ());
        // A quiet job resyncs every 600 s, and a sweep runs every 2 s.
        for _ in 0..5 {
            ask(&mut draining, "quiet");
            for _ in 0..310 {
                draining.sweep();
            }
        }
        assert_eq!(digests(&draining), ["quiet"]);
    }

    #[test]
    fn versions_that_pile_up_push_out_the_one_that_was_unused_for_longest() {
        let mut draining = Draining::default();
        draining.add("used", ());
        draining.add("unused", ());
        draining.sweep();
        ask(&mut draining, "used");
        for number in 0..MAX_VERSIONS {
            draining.add(&format!("version-{number:02}"), ());
            ask(&mut draining, "used");
        }
        assert_eq!(draining.iter().count(), MAX_VERSIONS);
        let kept = digests(&draining);
        assert!(kept.contains(&"used") && !kept.contains(&"unused") && !kept.contains(&"version-00"), "{kept:?}");
    }
}
