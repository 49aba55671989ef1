//! Made-up names in a plan, in place of the names that a job gets at its creation.

use oarlock_view::JobPlan;

/// The UID of a job that does not exist. The UUID version is one that the API server never uses, so no real job has
/// this UID. The parts of the UID are unlikely in other names.
pub(super) const UID: &str = "f0a71c0d-9e3b-0d25-0c6f-71ba0e52d8c4";
/// The made-up end of a generated name. The API server never uses these letters.
pub(super) const SUFFIX: &str = "aeiou";

/// The lengths of the UID and its prefixes that are replaced. A plugin may use only the first groups in a name.
const BEGINS: [usize; 5] = [36, 23, 18, 13, 8];
/// The shortest of [`BEGINS`].
const SHORTEST: usize = 8;

/// Replaces the made-up names in a plan: the UID by `<UID>`, and the end of a generated name after `prefix` by
/// `<SUFFIX>`.
pub(super) fn show(plan: &mut JobPlan, prefix: Option<&str>) {
    let hide = |text: &mut String| {
        let shown = without_uid(text);
        *text = match prefix {
            Some(prefix) => shown.replace(&format!("{prefix}{SUFFIX}"), &format!("{prefix}<SUFFIX>")),
            None => shown,
        };
    };
    for target in &mut plan.targets {
        target.first.iter_mut().for_each(|change| {
            hide(&mut change.name);
            hide(&mut change.what);
        });
        target.message.iter_mut().for_each(&hide);
        target.server.iter_mut().for_each(|answer| hide(&mut answer.message));
    }
    plan.warnings.iter_mut().for_each(&hide);
}

/// Returns `text` with `<UID>` for the UID or a prefix of it, with or without hyphens.
fn without_uid(text: &str) -> String {
    let bare = UID.replace('-', "");
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(UID.get(..SHORTEST).unwrap_or(UID)) {
        let (before, found) = rest.split_at(at);
        let same = |uid: &str| found.chars().zip(uid.chars()).take_while(|(one, other)| one == other).count();
        let groups = BEGINS.into_iter().find(|length| *length <= same(UID)).unwrap_or(SHORTEST);
        shown.push_str(before);
        shown.push_str("<UID>");
        // The match is ASCII, so the slice is at a character boundary.
        rest = found.get(groups.max(same(&bare))..).unwrap_or_default();
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use oarlock_view::{PlanChange, PlanTarget};

    use super::*;

    #[test]
    fn a_name_that_depends_on_the_uid_is_shown_as_one() {
        for (text, shown) in [
            ("web-f0a71c0d-0-1", "web-<UID>-0-1"),
            ("web-f0a71c0d-9-1", "web-<UID>-9-1"),
            (UID, "<UID>"),
            ("x-f0a71c0d9e3b0d250c6f71ba0e52d8c4.y", "x-<UID>.y"),
            ("f0a71c0d f0a71c0d", "<UID> <UID>"),
            ("web-f0a71c0", "web-f0a71c0"),
            ("größer", "größer"),
        ] {
            assert_eq!(without_uid(text), shown);
        }
    }

    #[test]
    fn the_name_that_the_cluster_chooses_is_shown_as_such() {
        let change = PlanChange { name: "web-aeiou-f0a71c0d-0-1".into(), ..PlanChange::default() };
        let target = PlanTarget { first: vec![change], ..PlanTarget::default() };
        let mut plan = JobPlan { targets: vec![target], ..JobPlan::default() };
        show(&mut plan, Some("web-"));
        assert_eq!(plan.targets[0].first[0].name, "web-<SUFFIX>-<UID>-0-1");
    }
}
