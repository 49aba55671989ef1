//! The world around the API server: pods that terminate are gone, and their controller makes others.

use crate::api::Api;
use crate::scene::{MARK, ORIGIN, Scene, Way, at};
use crate::state::State;
use crate::steps::Action;

impl State {
    /// What the world may do next.
    pub fn world(&self, scene: &Scene, steps: &mut Vec<Action>) {
        steps.extend(self.api.ending().map(|name| Action::Gone(name.clone())));
        match scene.way {
            Way::Evicted => {
                let stays = self.api.pods.values().filter(|pod| !pod.terminating()).count();
                let gone = scene
                    .pods
                    .iter()
                    .find(|name| !self.api.pods.contains_key(**name) && !self.api.pods.contains_key(&next(name)));
                if stays < scene.pods.len() {
                    steps.extend(gone.map(|name| Action::Replace((*name).to_owned())));
                }
            }
            Way::EvictedUnderItsName => {
                let gone = scene.pods.iter().filter(|name| !self.api.pods.contains_key(**name));
                steps.extend(gone.map(|name| Action::Replace((*name).to_owned())));
            }
            Way::Marked => {
                for name in scene.pods {
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

    /// A step of the world.
    pub fn act(&mut self, scene: &Scene, step: &Action) {
        if let Action::Remove(_) = step {
            self.left.removals -= 1;
        }
        self.change(|api: &mut Api, now| match step {
            Action::Gone(name) => api.remove(name),
            Action::Replace(name) if scene.way == Way::EvictedUnderItsName => {
                // Two may be made within a second, and no two have the same.
                let uid = format!("{name}-{}", api.version(name));
                Some(api.make(scene, name, &uid, at(now)))
            }
            Action::Replace(name) => Some(api.make(scene, &next(name), &next(name), at(now))),
            Action::Partner(name) => {
                api.make(scene, &next(name), &next(name), at(now));
                let origin = [(ORIGIN.to_owned(), name.clone())];
                api.change(&next(name), |pod| pod.labels = origin.into_iter().collect())
            }
            Action::Retire(name) | Action::Remove(name) => api.terminate(name, now),
            _ => None,
        });
    }
}

/// The name of the pod that is made in place of another one.
pub fn next(name: &str) -> String {
    format!("{name}-n")
}
