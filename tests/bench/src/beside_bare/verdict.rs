//! Judges the targets of the scenario `beside-bare` by the pods that exist at the end.
//!
//! Each target must be gone, and exactly one pod must serve in its place, without the label that paired it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kube::{Resource, ResourceExt as _};
use oarlock_sim::world::labels;

use super::pods::IN_PLACE_OF;

/// The number of wrong outcomes that a verdict names. A faulty bench may have a thousand.
const NAMED: usize = 5;

/// The wrong outcomes, one sentence for each target or pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PairVerdict {
    pub(crate) wrong: Vec<String>,
}

impl fmt::Display for PairVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.wrong.is_empty() {
            return f.write_str("clean");
        }
        let named: Vec<&str> = self.wrong.iter().take(NAMED).map(String::as_str).collect();
        write!(f, "{} wrong: {}", self.wrong.len(), named.join(", "))
    }
}

/// Judges the remaining pods, or their metadata. Each target is given as (name, UID).
pub(crate) fn judge<P: Resource>(targets: &[(String, String)], pods: &[P]) -> PairVerdict {
    let uids: BTreeSet<String> = pods.iter().filter_map(P::uid).collect();
    let (known, of_targets): (BTreeSet<&str>, BTreeSet<&str>) =
        targets.iter().map(|(name, uid)| (name.as_str(), uid.as_str())).unzip();
    let mut pairs = BTreeMap::<&str, Vec<&P>>::new();
    let mut wrong = Vec::new();
    for pod in pods {
        match pod.annotations().get(IN_PLACE_OF).filter(|origin| known.contains(origin.as_str())) {
            Some(origin) => pairs.entry(origin).or_default().push(pod),
            None if pod.uid().is_some_and(|uid| of_targets.contains(uid.as_str())) => {}
            None => wrong.push(format!("{} takes no target's place", pod.name_any())),
        }
    }
    for (name, uid) in targets {
        let pairs = pairs.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        if uids.contains(uid) {
            wrong.push(format!("{name} is not gone"));
        } else if let [pair] = pairs {
            wrong.extend(fault(*pair).map(|fault| format!("{} in place of {name} {fault}", pair.name_any())));
        } else {
            wrong.push(format!("{name} has {} pairs", pairs.len()));
        }
    }
    PairVerdict { wrong }
}

/// Returns what is wrong with a pair, if anything.
fn fault<P: Resource>(pair: &P) -> Option<&'static str> {
    if pair.meta().deletion_timestamp.is_some() {
        Some("is being deleted")
    } else if !pair.labels().contains_key(labels::SERVICE_AVAILABLE) {
        Some("does not serve")
    } else if pair.labels().contains_key(labels::PAIR_ORIGIN_NAME) {
        Some("still names it")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn pair(name: &str, origin: &str, labels: &[&str]) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.uid = Some(format!("uid-{name}"));
        pod.metadata.annotations = Some([(IN_PLACE_OF.to_owned(), origin.to_owned())].into());
        pod.metadata.labels = Some(labels.iter().map(|label| ((*label).to_owned(), "true".to_owned())).collect());
        pod
    }

    fn targets(names: &[&str]) -> Vec<(String, String)> {
        names.iter().map(|name| ((*name).to_owned(), format!("uid-{name}"))).collect()
    }

    #[test]
    fn target_that_is_gone_with_one_pair_that_serves_is_right() {
        let verdict = judge(&targets(&["a"]), &[pair("b", "a", &[labels::SERVICE_AVAILABLE])]);
        assert_eq!((verdict.to_string().as_str(), verdict.wrong.len()), ("clean", 0));
    }

    #[test]
    fn target_that_stays_and_one_without_a_pair_or_with_two_are_wrong() {
        let serves = |name: &str, origin: &str| pair(name, origin, &[labels::SERVICE_AVAILABLE]);
        let stays = Pod { metadata: serves("a", "").metadata, ..Pod::default() };
        let pods = [stays, serves("x", "c"), serves("y", "c")];
        let verdict = judge(&targets(&["a", "b", "c"]), &pods);
        assert_eq!(verdict.wrong, ["a is not gone", "b has 0 pairs", "c has 2 pairs"]);
    }

    #[test]
    fn pair_that_does_not_serve_or_still_names_its_origin_is_wrong() {
        let pods = [pair("x", "a", &[]), pair("y", "b", &[labels::SERVICE_AVAILABLE, labels::PAIR_ORIGIN_NAME])];
        let verdict = judge(&targets(&["a", "b"]), &pods);
        assert_eq!(verdict.wrong, ["x in place of a does not serve", "y in place of b still names it"]);
    }

    #[test]
    fn pod_that_takes_no_targets_place_is_wrong() {
        let pods = [pair("x", "elsewhere", &[]), pair("b", "a", &[labels::SERVICE_AVAILABLE])];
        assert_eq!(judge(&targets(&["a"]), &pods).to_string(), "1 wrong: x takes no target's place");
    }
}
