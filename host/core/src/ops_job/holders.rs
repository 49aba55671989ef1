//! Which OpsJob works on what: one at a time on a node, and one of a type on a pod. Source: docs/opsjob.md 3.
//!
//! It is rebuilt from the statuses of jobs when a term begins: a job holds its targets from the status that says that they are
//! resolved until its finalizer goes. May not forget a holder by itself.

use std::collections::HashMap;

/// What one job at a time may work on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HeldPlace {
    /// A node, by UID: a namesake is another one.
    Node(String),
    /// A pod, by UID, for a type of jobs.
    Pod(&'static str, String),
}

/// Who has what.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// Job by place.
    by_place: HashMap<HeldPlace, String>,
    /// The name and the places of each job.
    by_job: HashMap<String, (String, Vec<HeldPlace>)>,
}

/// A place that another job has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceTaken {
    /// The first such place.
    pub place: HeldPlace,
    /// The name of the job that has it.
    pub holder: String,
}

impl Holders {
    /// Gives all of these places to the job of this UID and name, or none of them.
    ///
    /// # Errors
    /// The first place that another job has.
    pub fn take(&mut self, job: &str, name: &str, places: &[HeldPlace]) -> Result<(), PlaceTaken> {
        let taken =
            places.iter().find_map(|place| Some((place, self.by_place.get(place)?)).filter(|(_, by)| *by != job));
        if let Some((place, holder)) = taken {
            let holder = self.by_job.get(holder).map_or_else(|| holder.clone(), |(name, _)| name.clone());
            return Err(PlaceTaken { place: place.clone(), holder });
        }
        self.give_back(job);
        self.by_place.extend(places.iter().map(|place| (place.clone(), job.to_owned())));
        self.by_job.insert(job.to_owned(), (name.to_owned(), places.to_vec()));
        Ok(())
    }

    /// The job has nothing any more.
    pub fn give_back(&mut self, job: &str) {
        let (_, places) = self.by_job.remove(job).unwrap_or_default();
        places.iter().for_each(|place| drop(self.by_place.remove(place)));
    }

    /// The UIDs of jobs of this name that have a place, but for this one.
    pub fn others(&self, name: &str, uid: &str) -> Vec<String> {
        let others = self.by_job.iter().filter(|(job, (of, _))| of == name && *job != uid);
        others.map(|(job, _)| job.clone()).collect()
    }

    /// The UID of the job that has this place.
    pub fn holder(&self, place: &HeldPlace) -> Option<&str> {
        self.by_place.get(place).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(number: u8) -> HeldPlace {
        HeldPlace::Node(number.to_string())
    }

    #[test]
    fn a_job_gets_all_of_its_nodes_or_none_and_its_own_again() {
        let mut holders = Holders::default();
        assert_eq!(holders.take("a", "na", &[node(1), node(2)]), Ok(()));
        let busy = PlaceTaken { place: node(2), holder: "na".to_owned() };
        assert_eq!(holders.take("b", "nb", &[node(3), node(2)]), Err(busy));
        assert_eq!(holders.holder(&node(3)), None);
        // A new term reads the same from the status again.
        assert_eq!(holders.take("a", "na", &[node(1), node(2)]), Ok(()));
        holders.give_back("a");
        assert_eq!(holders.take("b", "nb", &[node(3), node(2)]), Ok(()));
    }

    #[test]
    fn those_of_a_name_that_have_something_are_known_by_uid() {
        let mut holders = Holders::default();
        holders.take("a", "j", &[node(1)]).unwrap();
        holders.take("b", "j", &[node(2)]).unwrap();
        assert_eq!((holders.others("j", "b"), holders.others("k", "")), (vec!["a".to_owned()], vec![]));
    }

    #[test]
    fn a_pod_is_for_one_job_of_each_type() {
        let mut holders = Holders::default();
        let of = |kind| [HeldPlace::Pod(kind, "p".to_owned())];
        assert_eq!(
            (holders.take("a", "na", &of("dumplog")), holders.take("b", "nb", &of("exportimage"))),
            (Ok(()), Ok(()))
        );
        assert!(holders.take("c", "nc", &of("dumplog")).is_err());
    }

    proptest! {
        /// Whatever is taken and given back, no place has two holders, and nothing is left of who gave all back.
        #[test]
        fn no_place_has_two_holders(steps in prop::collection::vec((0u8..4, prop::collection::vec(0u8..6, 0..4)), 0..40)) {
            let mut holders = Holders::default();
            let mut model: HashMap<u8, Vec<u8>> = HashMap::new();
            for (job, nodes) in steps {
                let name = job.to_string();
                if nodes.is_empty() {
                    holders.give_back(&name);
                    model.remove(&job);
                    continue;
                }
                let is_free = model.iter().all(|(other, has)| *other == job || !has.iter().any(|node| nodes.contains(node)));
                let places: Vec<HeldPlace> = nodes.iter().map(|number| node(*number)).collect();
                prop_assert_eq!(holders.take(&name, &name, &places).is_ok(), is_free);
                if is_free {
                    model.insert(job, nodes);
                }
                for number in 0..6 {
                    let holder = model.iter().find(|(_, has)| has.contains(&number)).map(|(job, _)| job.to_string());
                    prop_assert_eq!(holders.holder(&node(number)), holder.as_deref());
                }
            }
        }
    }
}
