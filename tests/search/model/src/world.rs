//! The cluster around the API server: terminating pods disappear, and their controller creates other pods.

use crate::api::Api;
use crate::scenario::{MARK, ORIGIN, Scenario, Way, at};
use crate::state::State;
use crate::steps::Action;

impl State {
    /// Adds the steps that the cluster may make next.
    pub fn world(&self, scenario: &Scenario, steps: &mut Vec<Action>) {
        steps.extend(self.api.ending().map(|name| Action::Gone(name.clone())));
        match scenario.way {
            Way::Evicted => {
                let stays = self.api.pods.values().filter(|pod| !pod.terminating()).count();
                let gone = scenario
                    .pods
                    .iter()
                    .find(|name| !self.api.pods.contains_key(**name) && !self.api.pods.contains_key(&next(name)));
                if stays < scenario.pods.len() {
                    steps.extend(gone.map(|name| Action::Replace((*name).to_owned())));
                }
            }
            Way::EvictedUnderItsName => {
                let gone = scenario.pods.iter().filter(|name| !self.api.pods.contains_key(**name));
                steps.extend(gone.map(|name| Action::Replace((*name).to_owned())));
            }
            Way::Marked => {
                for name in scenario.pods {
                    let partner = self.api.pods.contains_key(&next(name));
                    match self.api.pods.get(*name).filter(|pod| !pod.terminating()) {
                        Some(pod) if pod.labels.contains_key(MARK) && !partner => {
                            steps.push(Action::Partner((*name).to_owned()));
                        }
                        Some(pod) if pod.labels.contains_key(MARK) => steps.push(Action::Retire((*name).to_owned())),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Makes a step of the cluster.
    pub fn act(&mut self, scenario: &Scenario, step: &Action) {
        if let Action::Remove(_) = step {
            self.left.removals -= 1;
        }
        self.change(|api: &mut Api, now| match step {
            Action::Gone(name) => api.remove(name),
            Action::Replace(name) if scenario.way == Way::EvictedUnderItsName => {
                // The controller may make two pods of this name within a second, and each needs its own UID.
                let uid = format!("{name}-{}", api.version(name));
                Some(api.make(scenario, name, &uid, at(now)))
            }
            Action::Replace(name) => Some(api.make(scenario, &next(name), &next(name), at(now))),
            Action::Partner(name) => {
                api.make(scenario, &next(name), &next(name), at(now));
                let origin = [(ORIGIN.to_owned(), name.clone())];
                api.change(&next(name), |pod| pod.labels = origin.into_iter().collect())
            }
            Action::Retire(name) | Action::Remove(name) => api.terminate(name, now),
            _ => None,
        });
    }
}

/// Returns the name of the pod that replaces another pod.
pub fn next(name: &str) -> String {
    format!("{name}-n")
}
