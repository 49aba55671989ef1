//! A plugin that does what plugins must not do, for tests of the host.
//!
//! The job's parameter `do`, such as `trap-in-operate`, or the pod's label `hostile.test/do` selects a misdeed and a
//! function. In every other call the plugin behaves well: it labels the pod, and succeeds once the label is there. The
//! misdeeds do no harm on a host that keeps its promises.

mod deed;
mod setup;

use std::time::Duration;

use oarlock_sdk::{Action, Change, Job, Proposal, Registration, Report, Result, Target, export};

use deed::Deed;

/// The label by which a pod asks for a misdeed. It has precedence over the job's parameter.
pub const DO: &str = "hostile.test/do";
/// The label that a good plugin sets.
pub const DONE: &str = "hostile.test/done";

/// The action `Hostile`.
#[derive(Debug)]
pub struct Hostile;

impl Action for Hostile {
    fn setup() -> Result<Registration> {
        setup::setup()
    }

    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        match Deed::due("operate", job, target)? {
            Some(deed) => deed.commit(job, target),
            None => Ok(good(target)),
        }
    }

    fn progress(job: &Job, target: &Target) -> Result<Report> {
        match Deed::due("progress", job, target)? {
            Some(Deed::Lie) => Ok(Report::succeeded()),
            Some(Deed::Hurry) => Ok(Report::processing().check_after(Duration::ZERO)),
            Some(Deed::Dawdle) => Ok(Report::processing().check_after(Duration::from_secs(3600))),
            Some(Deed::Give) => Ok(Report::failed("Hostile\u{0}Reason", "x".repeat(1 << 20))),
            Some(deed) => Ok(Report::processing().with(deed.commit(job, target)?)),
            None if target.object().is_some_and(|pod| pod.has_label(DONE)) => Ok(Report::succeeded()),
            None => Ok(Report::processing()),
        }
    }

    fn release(job: &Job, target: &Target) -> Result<Proposal> {
        match Deed::due("release", job, target)? {
            Some(deed) => deed.commit(job, target),
            None => Ok(Proposal::new()),
        }
    }
}

export!(Hostile, manifest = include_str!("../manifest.json"));

/// Returns the proposal of a good plugin.
fn good(target: &Target) -> Proposal {
    let pod = target.object().filter(|pod| !pod.has_label(DONE));
    pod.map_or_else(Proposal::new, |pod| Proposal::new().change(Change::of(&pod).set_label(DONE, "true").keep()))
}

#[cfg(test)]
mod tests {
    use oarlock_sdk::State;
    use oarlock_sdk::kit::{Visit, pod};
    use serde_json::json;

    use super::*;

    fn asked(what: &str) -> Visit {
        Visit::to(&pod("web")).parameters(json!({"do": what}))
    }

    fn marked() -> Proposal {
        Proposal::new().change(Change::of(&pod("web")).set_label(DONE, "true").keep())
    }

    #[test]
    fn plugin_that_is_asked_for_nothing_is_a_good_one() {
        assert_eq!(Visit::to(&pod("web")).operate::<Hostile>().unwrap(), marked());
        assert_eq!(asked("succeed").operate::<Hostile>().unwrap(), marked());
        let done = Visit::to(&pod("web").label(DONE, "true"));
        assert_eq!(done.operate::<Hostile>().unwrap(), Proposal::new());
        assert_eq!(done.progress::<Hostile>().unwrap(), Report::succeeded());
    }

    #[test]
    fn misdeed_is_done_in_the_function_it_is_asked_for_alone() {
        assert_eq!(asked("fail-in-release").operate::<Hostile>().unwrap(), marked());
        assert_eq!(asked("fail-in-release").release::<Hostile>().unwrap_err().reason(), "Hostile");
        assert_eq!(asked("lie-in-progress").progress::<Hostile>().unwrap().state(), &State::Succeeded);
        assert_eq!(asked("fail").operate::<Hostile>().unwrap_err().reason(), "UnknownDeed");
    }

    #[test]
    fn label_of_a_pod_goes_before_the_job() {
        let web = pod("web").label(DO, "fail-in-operate");
        let visit = Visit::to(&web).parameters(json!({"do": "succeed"}));
        assert_eq!(visit.operate::<Hostile>().unwrap_err().reason(), "Hostile");
    }

    #[test]
    fn misdeed_of_the_first_try_is_not_repeated() {
        let visit = Visit::to(&pod("web")).parameters(json!({"do": "retry-in-operate", "tries": 1}));
        assert!(visit.operate::<Hostile>().unwrap_err().is_retryable());
        assert_eq!(visit.call_try(2).operate::<Hostile>().unwrap(), marked());
    }

    #[test]
    fn two_misdeeds_are_done_each_in_its_function() {
        let visit = asked("hold-in-operate,fail-in-progress");
        let held = Change::of(&pod("web")).set_label("hostile.test/held", "true");
        assert_eq!(visit.operate::<Hostile>().unwrap(), Proposal::new().change(held));
        assert_eq!(visit.progress::<Hostile>().unwrap_err().reason(), "Hostile");
        let held =
            Visit::to(&pod("web").label("hostile.test/held", "true")).parameters(json!({"do": "hold-in-operate"}));
        assert_eq!(held.operate::<Hostile>().unwrap(), Proposal::new());
    }

    #[test]
    fn misdeed_of_the_first_attempts_is_not_repeated() {
        let visit = Visit::to(&pod("web")).parameters(json!({"do": "fail-in-operate", "attempts": 2}));
        assert_eq!(visit.clone().attempt(2).operate::<Hostile>().unwrap_err().reason(), "Hostile");
        assert_eq!(visit.attempt(3).operate::<Hostile>().unwrap(), marked());
    }

    #[test]
    fn what_the_manifest_does_not_declare_is_refused() {
        for what in ["undeclared-field", "undeclared-kind", "undeclared-relation"] {
            let failure = asked(&format!("{what}-in-operate")).operate::<Hostile>().unwrap_err();
            assert_eq!(failure.reason(), "NotDeclared", "{what}");
        }
        for (what, reason) in [
            ("ungranted-mutation", "MutationDenied"),
            ("unknown-mutation", "MutationDenied"),
            ("garbled-json", "PluginTrapped"),
        ] {
            let failure = asked(&format!("{what}-in-operate")).operate::<Hostile>().unwrap_err();
            assert_eq!(failure.reason(), reason, "{what}");
        }
    }

    #[test]
    fn too_much_is_as_much_as_its_name_says() {
        let failure = asked("many-mutations-in-operate").operate::<Hostile>().unwrap_err();
        assert_eq!(failure.reason(), "PluginLimitExceeded");
        let failure = asked("huge-output-in-release").release::<Hostile>().unwrap_err();
        assert!(failure.message().contains("its answer has more than"), "{failure}");
    }
}
