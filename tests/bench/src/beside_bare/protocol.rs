//! Decides the writes that a CollaSet's controller makes for each origin that asks to be replaced.
//!
//! The input is the pods that a watch delivers; the output is the next write, if any. An origin gets exactly five writes, as
//! KusionStack's controller and webhook make them:
//!
//! 1. The controller creates the pod that is to take the origin's place, its *pair*. The pair names the origin.
//! 2. The controller labels the origin with the instance id of its pair.
//! 3. The controller labels the pair as available. The contenders read only this label and no condition, so no status is written.
//! 4. The controller deletes the origin by its UID. The contender's finalizer keeps the origin until the contender has recorded the
//!    pair.
//! 5. Once the origin is gone, the controller removes the label that names the origin from the pair.
//!
//! The protocol never takes a replacement back, because no contender here removes its mark.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use oarlock_sim::world::labels;

use super::pods;

/// A request that the controller must make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodWrite {
    CreatePair { id: usize, origin: String },
    NamePair { origin: String, uid: String, id: usize },
    MakeAvailable { pair: String },
    DeleteOrigin { origin: String, uid: String },
    Unpair { pair: String },
}

/// The last write that was decided for an origin. Each step waits until the watch shows the previous one, so that no origin or pair
/// has two writes in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Created,
    Named,
    Available,
    Deleted,
    Unpaired,
    Finished,
}

#[derive(Debug)]
struct Replacement {
    origin_uid: String,
    pair: String,
    id: usize,
    step: Step,
}

/// The progress of all replacements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Origins that are gone. The pair of each serves.
    pub(crate) gone: usize,
    /// Origins for which all five writes were made.
    pub(crate) finished: usize,
}

/// The replacements of one CollaSet.
#[derive(Debug)]
pub(crate) struct Protocol {
    owner: OwnerReference,
    next_id: usize,
    /// The replacements, by the name of the origin.
    replacements: HashMap<String, Replacement>,
    /// The names of origins, by the name of the pair.
    origins: HashMap<String, String>,
    progress: Progress,
}

impl Protocol {
    /// Returns the protocol of a CollaSet whose next pod gets this instance id.
    pub(crate) fn new(owner: OwnerReference, next_id: usize) -> Self {
        let (replacements, origins) = (HashMap::new(), HashMap::new());
        Self { owner, next_id, replacements, origins, progress: Progress::default() }
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns the write that this version of a pod calls for.
    pub(crate) fn saw(&mut self, pod: &Pod) -> Option<PodWrite> {
        if !self.owns(pod) {
            return None;
        }
        let name = pod.name_any();
        match self.origins.get(&name) {
            Some(origin) => self.saw_pair(pod, &origin.clone()),
            None => self.saw_origin(pod, name),
        }
    }

    /// Returns the write that the end of a pod calls for.
    pub(crate) fn saw_end(&mut self, pod: &Pod) -> Option<PodWrite> {
        let replacement = self.replacements.get_mut(&pod.name_any())?;
        // An origin that goes earlier is never counted, because only this controller may delete it.
        if replacement.step != Step::Deleted {
            return None;
        }
        replacement.step = Step::Unpaired;
        self.progress.gone += 1;
        Some(PodWrite::Unpair { pair: replacement.pair.clone() })
    }

    fn owns(&self, pod: &Pod) -> bool {
        pod.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == self.owner.uid)
    }

    fn saw_origin(&mut self, pod: &Pod, origin: String) -> Option<PodWrite> {
        let Some(replacement) = self.replacements.get_mut(&origin) else {
            // An empty value counts as absent.
            pod.labels().get(labels::TO_REPLACE).filter(|value| !value.is_empty())?;
            return Some(self.create_pair(origin, pod.uid().unwrap_or_default()));
        };
        let is_named = pod.labels().get(labels::PAIR_NEW_ID).is_some_and(|id| *id == replacement.id.to_string());
        (replacement.step == Step::Named && is_named).then(|| {
            replacement.step = Step::Available;
            PodWrite::MakeAvailable { pair: replacement.pair.clone() }
        })
    }

    fn create_pair(&mut self, origin: String, origin_uid: String) -> PodWrite {
        let id = self.next_id;
        self.next_id += 1;
        let pair = pods::name(&self.owner, id);
        self.origins.insert(pair.clone(), origin.clone());
        self.replacements.insert(origin.clone(), Replacement { origin_uid, pair, id, step: Step::Created });
        PodWrite::CreatePair { id, origin }
    }

    fn saw_pair(&mut self, pod: &Pod, origin: &str) -> Option<PodWrite> {
        let replacement = self.replacements.get_mut(origin)?;
        let bears = |label: &str| pod.labels().contains_key(label);
        let (origin, uid) = (origin.to_owned(), replacement.origin_uid.clone());
        match replacement.step {
            Step::Created => {
                replacement.step = Step::Named;
                Some(PodWrite::NamePair { origin, uid, id: replacement.id })
            }
            Step::Available if bears(labels::SERVICE_AVAILABLE) => {
                replacement.step = Step::Deleted;
                Some(PodWrite::DeleteOrigin { origin, uid })
            }
            Step::Unpaired if !bears(labels::PAIR_ORIGIN_NAME) => {
                replacement.step = Step::Finished;
                self.progress.finished += 1;
                None
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: &str) -> OwnerReference {
        OwnerReference { name: "set".into(), uid: uid.into(), controller: Some(true), ..OwnerReference::default() }
    }

    fn protocol() -> Protocol {
        Protocol::new(owner("uid-set"), 1)
    }

    fn with(mut pod: Pod, label: &str, value: &str) -> Pod {
        pod.metadata.labels.get_or_insert_default().insert(label.to_owned(), value.to_owned());
        pod
    }

    fn origin() -> Pod {
        let mut pod = pods::origin(&owner("uid-set"), 0);
        pod.metadata.uid = Some("uid-0".to_owned());
        pod
    }

    #[test]
    fn origin_gets_five_writes_each_after_the_one_before_is_seen() {
        let (mut protocol, name, uid) = (protocol(), "set-00000".to_owned(), "uid-0".to_owned());
        assert_eq!(protocol.saw(&origin()), None);
        let marked = with(origin(), labels::TO_REPLACE, "true");
        assert_eq!(protocol.saw(&marked), Some(PodWrite::CreatePair { id: 1, origin: name.clone() }));
        assert_eq!(protocol.saw(&marked), None);

        let pair = pods::pair(&owner("uid-set"), 1, &name);
        let named = PodWrite::NamePair { origin: name.clone(), uid: uid.clone(), id: 1 };
        assert_eq!((protocol.saw(&pair), protocol.saw(&pair), protocol.saw(&marked)), (Some(named), None, None));

        let paired = with(marked, labels::PAIR_NEW_ID, "1");
        let available = PodWrite::MakeAvailable { pair: "set-00001".to_owned() };
        assert_eq!((protocol.saw(&paired), protocol.saw(&paired), protocol.saw(&pair)), (Some(available), None, None));

        let serving = with(pair, labels::SERVICE_AVAILABLE, "true");
        let deleted = PodWrite::DeleteOrigin { origin: name, uid };
        assert_eq!(
            (protocol.saw(&serving), protocol.saw(&serving), protocol.saw(&paired)),
            (Some(deleted), None, None)
        );

        let unpaired = PodWrite::Unpair { pair: "set-00001".to_owned() };
        assert_eq!((protocol.saw_end(&paired), protocol.saw(&serving)), (Some(unpaired), None));
        assert_eq!(protocol.progress(), Progress { gone: 1, finished: 0 });
        let mut alone = serving;
        alone.metadata.labels.as_mut().unwrap().remove(labels::PAIR_ORIGIN_NAME);
        assert_eq!((protocol.saw(&alone), protocol.saw(&alone)), (None, None));
        assert_eq!(protocol.progress(), Progress { gone: 1, finished: 1 });
    }

    #[test]
    fn each_origin_has_a_pair_of_its_own() {
        let mut protocol = protocol();
        let marked = |id: usize| with(pods::origin(&owner("uid-set"), id + 100), labels::TO_REPLACE, "true");
        let ids: Vec<_> = (0..3).map(|id| protocol.saw(&marked(id))).collect();
        let created = |id: usize| Some(PodWrite::CreatePair { id: id + 1, origin: format!("set-{:05}", id + 100) });
        assert_eq!(ids, [0, 1, 2].map(created));
    }

    #[test]
    fn pods_of_another_owner_and_empty_marks_are_left_alone() {
        let mut protocol = protocol();
        assert_eq!(protocol.saw(&with(pods::origin(&owner("other"), 0), labels::TO_REPLACE, "true")), None);
        assert_eq!(protocol.saw(&with(origin(), labels::TO_REPLACE, "")), None);
    }

    #[test]
    fn origin_that_goes_before_its_pair_serves_is_not_counted() {
        let mut protocol = protocol();
        let marked = with(origin(), labels::TO_REPLACE, "true");
        assert!(protocol.saw(&marked).is_some());
        assert_eq!((protocol.saw_end(&marked), protocol.progress()), (None, Progress::default()));
    }
}
