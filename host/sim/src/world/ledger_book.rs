//! Derives the entries of the event log from the versions of pods.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::labels;
use super::ledger::{Cause, Effect, Entry};
use super::pod_facts::PodFacts;

/// The state of one pod in the event log.
#[derive(Clone, Debug, Default)]
struct Life {
    namespace: String,
    name: String,
    owner: Option<String>,
    owner_keeps_names: bool,
    started: bool,
    ready: bool,
    ended: bool,
    evicted: bool,
    terminating: bool,
    gone: bool,
    replaced: bool,
    /// Number of restarts of each container.
    restarts: HashMap<String, i32>,
}

impl Life {
    /// Returns the namespace and owner of the pod. Pods of other namespaces that name the same owner uid belong to another set.
    fn set(&self) -> Option<(String, String)> {
        Some((self.namespace.clone(), self.owner.clone()?))
    }
}

/// The entries of an event log, and the state of each pod from which they follow.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) entries: Vec<Entry>,
    lives: HashMap<String, Life>,
    named: HashMap<(String, String), Vec<String>>,
    /// Lost pods without a replacement by namespace and owner, in the order of loss.
    lost: HashMap<(String, String), Vec<String>>,
    pub(crate) announced: HashMap<String, Cause>,
}

impl Book {
    /// Logs the effects that a new version of a pod shows.
    pub(crate) fn saw(&mut self, pod: &Pod, time: Duration) {
        let uid = pod.uid();
        if !self.lives.contains_key(uid) {
            self.created(pod, time);
        }
        let Some(life) = self.lives.get_mut(uid) else { return };
        let mut news = Vec::new();
        let mut note = |known: &mut bool, now: bool, effect: Effect| {
            if now && !std::mem::replace(known, true) {
                news.push(effect);
            }
        };
        let node = pod.node().unwrap_or_default().to_owned();
        note(&mut life.started, pod.phase() == "Running", Effect::PodStarted { node });
        note(&mut life.ready, pod.is_ready(), Effect::PodReady);
        let exit_code = exit_code_of(pod);
        note(&mut life.ended, exit_code.is_some(), Effect::PodEnded { exit_code: exit_code.unwrap_or_default() });
        note(&mut life.evicted, pod.is_evicted(), Effect::PodEvicted);
        let cause = if life.evicted { Some(Cause::Evicted) } else { self.announced.get(uid).copied() };
        let terminating = Effect::PodTerminating { cause: cause.unwrap_or(Cause::Unknown) };
        note(&mut life.terminating, pod.is_terminating(), terminating);
        for (container, count) in restarts_of(pod) {
            let known = life.restarts.insert(container.clone(), count).unwrap_or(count);
            let each = (known..count).map(|before| before.saturating_add(1));
            news.extend(each.map(|count| Effect::ContainerRestarted { container: container.clone(), count }));
        }
        for effect in news {
            let was_lost = matches!(effect, Effect::PodTerminating { .. });
            self.append(uid, effect, time);
            if was_lost {
                self.lose(uid, cause);
            }
        }
    }

    fn created(&mut self, pod: &Pod, time: Duration) {
        let owner = pod.controller().map(|owner| owner.uid.clone());
        let life = Life {
            namespace: pod.pod_namespace().to_owned(),
            name: pod.pod_name().to_owned(),
            owner_keeps_names: pod.controller().is_some_and(|owner| owner.kind == "StatefulSet"),
            owner: owner.clone(),
            ..Life::default()
        };
        let for_origin = self.origin_of(pod, &life);
        if let Some(origin) = &for_origin {
            self.replace(origin);
        }
        let place = (life.namespace.clone(), life.name.clone());
        self.named.entry(place).or_default().push(pod.uid().to_owned());
        self.lives.insert(pod.uid().to_owned(), life);
        self.append(pod.uid(), Effect::PodCreated { owner, for_origin }, time);
    }

    /// Returns the existing pods that a full list lacks.
    pub(crate) fn missing(&self, listed: &HashSet<String>) -> Vec<String> {
        let missing = self.lives.iter().filter(|(uid, life)| !life.gone && !listed.contains(*uid));
        let mut missing: Vec<String> = missing.map(|(uid, _)| uid.clone()).collect();
        missing.sort();
        missing
    }

    /// Returns the pod that a new pod replaces.
    fn origin_of(&self, pod: &Pod, life: &Life) -> Option<String> {
        let latest = |name: &str| self.named.get(&(life.namespace.clone(), name.to_owned()))?.last().cloned();
        if let Some(name) = pod.label(labels::PAIR_ORIGIN_NAME) {
            return latest(name);
        }
        // Generated names can repeat. An older pod of this name that already has its replacement is a coincidence.
        let is_open = |uid: &String| self.lives.get(uid).is_some_and(|life| !life.replaced);
        if let Some(namesake) = latest(&life.name).filter(is_open) {
            return Some(namesake);
        }
        let lost = self.lost.get(&life.set()?)?;
        if life.owner_keeps_names { None } else { lost.first().cloned() }
    }

    fn replace(&mut self, origin: &str) {
        let Some(life) = self.lives.get_mut(origin) else { return };
        life.replaced = true;
        if let Some(lost) = life.set().and_then(|set| self.lost.get_mut(&set)) {
            lost.retain(|uid| uid != origin);
        }
    }

    /// Marks a leaving pod as lost, unless it already has a replacement or its set was scaled down.
    fn lose(&mut self, uid: &str, cause: Option<Cause>) {
        let Some(life) = self.lives.get(uid) else { return };
        let awaits_one = !life.replaced && cause != Some(Cause::ScaledDown);
        if let Some(set) = life.set().filter(|_| awaits_one) {
            self.lost.entry(set).or_default().push(uid.to_owned());
        }
    }

    /// Logs that a pod is gone.
    pub(crate) fn gone(&mut self, uid: &str, time: Duration) {
        let Some(life) = self.lives.get_mut(uid) else { return };
        if std::mem::replace(&mut life.gone, true) {
            return;
        }
        let was_told = life.terminating;
        self.append(uid, Effect::PodGone, time);
        if !was_told {
            self.lose(uid, self.announced.get(uid).copied());
        }
    }

    fn append(&mut self, uid: &str, effect: Effect, time: Duration) {
        let Some(Life { namespace, name, .. }) = self.lives.get(uid) else { return };
        let (namespace, name) = (namespace.clone(), name.clone());
        self.entries.push(Entry { time, namespace, name, uid: uid.to_owned(), effect });
    }
}

/// Returns the exit code of the first container of a pod that ended by itself.
fn exit_code_of(pod: &Pod) -> Option<i32> {
    let first = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    first.state.as_ref()?.terminated.as_ref().filter(|_| pod.is_finished()).map(|terminated| terminated.exit_code)
}

/// Returns the number of restarts of each container of a pod.
fn restarts_of(pod: &Pod) -> impl Iterator<Item = (String, i32)> {
    let statuses = pod.status.iter().flat_map(|status| &status.container_statuses).flatten();
    statuses.map(|status| (status.name.clone(), status.restart_count))
}
