//! Cordons, taints and labels each node. A target succeeds once somebody sets
//! an annotation that says that the maintenance is done. The marks on the node
//! are holds: the host removes them, however the target ends.

use oarlock_sdk::{Action, Change, Job, Mark, Object, Proposal, Report, Result, Taint, Target, export};

/// The key of the label and of the taint.
const MARK: &str = "example.com/maintenance";
/// The effect of the taint.
const EFFECT: &str = "NoSchedule";
/// The annotation that says that the maintenance is done.
const DONE: &str = "example.com/maintained";
/// The extra that is stored once all marks were on the node. After that, a mark
/// that somebody removes is not set again.
const BEGUN: &str = "Begun";

/// The action of this plugin.
#[derive(Debug)]
pub struct Maintain;

/// Returns true if all marks are on the node, whoever set them.
fn is_kept_free(node: &Object) -> Result<bool> {
    Ok(Mark::Cordon.is_on(node)? && Mark::Taint(MARK, EFFECT).is_on(node)? && node.has_label(MARK))
}

impl Action for Maintain {
    fn operate(job: &Job, target: &Target) -> Result<Proposal> {
        let Some(node) = target.object().filter(|_| target.extra(BEGUN).is_none()) else { return Ok(Proposal::new()) };
        if is_kept_free(&node)? {
            return Ok(Proposal::new().extra(BEGUN, "true"));
        }
        let (node, key, value, effect) = (node.name(), MARK.to_owned(), job.name(), EFFECT.to_owned());
        let taint = Taint { node: node.clone(), key, value, effect, present: true };
        let label = target.object().map(|node| Change::of(&node).set_label(MARK, "true"));
        let proposal = Proposal::new().cordon(node).taint(taint);
        Ok(label.into_iter().fold(proposal, Proposal::change))
    }

    fn progress(_: &Job, target: &Target) -> Result<Report> {
        Ok(match target.object() {
            None => Report::failed("NodeGone", "The node is gone, or another one has its name."),
            Some(node) if node.annotation(DONE).is_some() => Report::succeeded(),
            Some(_) => Report::processing(),
        })
    }
}

export!(Maintain, manifest = include_str!("../manifest.json"));

#[cfg(test)]
mod tests {
    use oarlock_sdk::json;
    use oarlock_sdk::kit::{Visit, node};

    use super::*;

    #[test]
    fn a_node_is_kept_free_until_the_work_is_said_to_be_done() {
        let first = Visit::to(&node("n"));
        let begin = first.operate::<Maintain>().unwrap();
        assert_eq!(begin.mutations().len(), 3);
        let second = first.after(&begin);
        let seen = second.operate::<Maintain>().unwrap();
        assert_eq!(seen, Proposal::new().extra(BEGUN, "true"));
        assert_eq!(second.progress::<Maintain>().unwrap(), Report::processing());
        let held = second.after(&seen).read::<Maintain, _>(|job, target| {
            let node = target.object().unwrap();
            let holds = node.holds(job);
            Ok([Mark::Cordon, Mark::Taint(MARK, EFFECT), Mark::Label(MARK)].map(|mark| holds.has(mark)))
        });
        assert_eq!(held.unwrap(), [true; 3]);
        let done = Visit::to(&node("n").annotation(DONE, "yes"));
        assert_eq!(done.progress::<Maintain>().unwrap(), Report::succeeded());
    }

    #[test]
    fn what_is_there_already_is_not_asked_for_again() {
        let taints = json!([{"key": MARK, "effect": EFFECT}]);
        let kept = node("n").field(&["spec", "unschedulable"], json!(true)).field(&["spec", "taints"], taints);
        let proposal = Visit::to(&kept.label(MARK, "true")).operate::<Maintain>().unwrap();
        assert_eq!(proposal, Proposal::new().extra(BEGUN, "true"));
    }

    #[test]
    fn a_node_that_is_gone_fails() {
        assert_ne!(Visit::to_gone("n").progress::<Maintain>().unwrap(), Report::processing());
    }
}
