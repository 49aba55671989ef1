//! The targets of jobs that are being made, and of those that live. Source: docs/opsjob-rest.md 4.
//!
//! The controller alone decides who has a target. This answers the loser at once, where it can be known here.

use std::collections::{HashMap, HashSet};

use oarlock_core::ops_job::holders::{HeldPlace, PlaceTaken};
use oarlock_kube::ops::OpsCache;
use parking_lot::Mutex;

/// The places of jobs that this process is making, each with the name of the job.
#[derive(Default)]
pub(crate) struct Reservations(Mutex<HashMap<HeldPlace, String>>);

/// Keeps places until it is dropped: by then the job is in the cache, or was not made.
pub(crate) struct Reservation<'a> {
    reservations: &'a Reservations,
    places: Vec<HeldPlace>,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut held = self.reservations.0.lock();
        self.places.iter().for_each(|place| drop(held.remove(place)));
    }
}

impl Reservations {
    /// Takes these places for a job of this name, or yields the first one that another job has.
    pub(crate) fn take(
        &self,
        job: &str,
        places: Vec<HeldPlace>,
        cache: &OpsCache,
    ) -> Result<Reservation<'_>, PlaceTaken> {
        let mut held = self.0.lock();
        // One that is sent twice under one key is one job.
        let other = |place: &HeldPlace| held.get(place).filter(|holder| *holder != job).cloned();
        let claimed = places.iter().find_map(|place| Some((place.clone(), other(place)?)));
        if let Some((place, holder)) = claimed.or_else(|| holder(job, &places, cache)) {
            return Err(PlaceTaken { place, holder });
        }
        held.extend(places.iter().map(|place| (place.clone(), job.to_owned())));
        Ok(Reservation { reservations: self, places })
    }
}

/// The first of these places that another job has which lives, and that job.
fn holder(own: &str, places: &[HeldPlace], cache: &OpsCache) -> Option<(HeldPlace, String)> {
    let wanted: HashSet<&HeldPlace> = places.iter().collect();
    cache.jobs().into_iter().filter(|job| job.is_live() && job.view.name != own).find_map(|job| {
        let place = job.view.places().into_iter().find(|place| wanted.contains(place))?;
        Some((place, job.view.name.clone()))
    })
}
