//! Plays one random flow to its rest, and checks each plan against the promises of every plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oarlock_core::attempts::plan::ParentPlan;
use oarlock_core::attempts::pods::PodReport;
use oarlock_core::attempts::unit::{Unit, UnitState};
use oarlock_core::object::time::after_seconds;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::{Value, json};

use crate::chance::case::{Case, End, StepCase};
use crate::fixture::make::job;
use crate::fixture::{Death, Fixture};

/// Seconds between two moments at which children end.
const WAVE: i64 = 3;

/// Returns a pseudo-random number from a seed and a text.
pub(super) fn mix(seed: u64, parts: &str) -> u64 {
    let mut mixed = seed ^ 0x9E37_79B9_7F4A_7C15;
    for byte in parts.bytes() {
        mixed = (mixed ^ u64::from(byte)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^= mixed >> 27;
    }
    mixed
}

/// Checks the promises of every plan: a second plan is equal, and a plan creates no child that is recorded.
pub(super) fn hold(fixture: &Fixture, plan: &ParentPlan) -> Result<(), TestCaseError> {
    for create in &plan.creates {
        let unit = plan.units.iter().find(|unit| unit.name == create.unit).unwrap();
        prop_assert!(!unit.has_child() && !unit.state.is_terminal(), "{} has a child", create.unit);
    }
    if plan.due.is_some_and(|due| due <= fixture.now) {
        // The plan asks for another plan at once: a failed attempt must be durable before the next attempt starts.
        return Ok(());
    }
    let again = fixture.plan_with(&fixture.remembered(plan));
    prop_assert_eq!(&again.units, &plan.units);
    prop_assert_eq!(&again.summary, &plan.summary);
    prop_assert_eq!(&again.creates, &plan.creates);
    prop_assert_eq!(&again.reads, &plan.reads);
    prop_assert_eq!(&again.changes, &plan.changes);
    prop_assert_eq!(&again.changes_after_record, &plan.changes_after_record);
    Ok(())
}

/// A fixture with a random flow.
pub(super) struct Play<'a> {
    case: &'a Case,
    pub(super) fixture: Fixture,
    /// Whether drivers die at random.
    dies: bool,
    rounds: u64,
    waves: u64,
    is_healed: bool,
}

impl<'a> Play<'a> {
    pub(super) fn new(case: &'a Case, order: &[usize], dies: bool) -> Self {
        let mut fixture = Fixture::flow(case.spec(order));
        fixture.add_template("there", "u/1", job());
        Self { case, fixture, dies, rounds: 0, waves: 0, is_healed: false }
    }

    /// Plays until nothing happens any more.
    pub(super) fn run(&mut self) -> Result<(), TestCaseError> {
        let most = 60 + 30 * (self.case.steps.len() + self.case.last.len());
        for _ in 0..most {
            let plan = self.quiet()?;
            self.waves += 1;
            if self.toggles(&plan) {
                continue;
            }
            let open = self.open();
            if open.is_empty() {
                let Some(due) = plan.due else { return Ok(()) };
                prop_assert!(due > self.fixture.now, "it spins");
                self.fixture.now = due;
                continue;
            }
            self.fixture.now = after_seconds(self.fixture.now, WAVE);
            // In a large flow, many children end at once.
            let some = if self.case.steps.len() > 50 { open.len() } else { 1 };
            open.into_iter().take(some).for_each(|(_, name, unit)| self.end(&name, &unit));
        }
        Err(TestCaseError::fail(format!("it never comes to rest: {:?}", self.fixture.states())))
    }

    /// Suspends the flow for a while, if the case says so.
    fn toggles(&mut self, plan: &ParentPlan) -> bool {
        let Some(wave) = self.case.suspended_at.map(u64::from) else { return false };
        let is_suspended = self.fixture.parent.spec["suspend"] == true;
        let is_over = is_suspended && (self.waves > wave + 3 || self.open().is_empty() && plan.due.is_none());
        if self.waves == wave + 1 || is_over {
            self.fixture.edit("/suspend", json!(!is_suspended));
            return true;
        }
        false
    }

    /// Runs rounds until the plan asks for nothing.
    fn quiet(&mut self) -> Result<ParentPlan, TestCaseError> {
        for _ in 0..40 {
            let before = self.fixture.memory.units.clone();
            let plan = self.fixture.plan();
            self.rounds += 1;
            hold(&self.fixture, &plan)?;
            self.starts_what_it_may(&plan)?;
            let death = self.death();
            self.fixture.carry_out(&plan, death);
            if death.is_some() {
                self.fixture.restart();
                continue;
            }
            let asks = plan.creates.len() + plan.changes.len() + plan.reads.len() + plan.changes_after_record.len();
            if asks == 0 && before == plan.units {
                return Ok(plan);
            }
        }
        Err(TestCaseError::fail(format!("it is never quiet: {:?}", self.fixture.states())))
    }

    fn death(&self) -> Option<Death> {
        let chance = mix(u64::from(self.case.seed), &self.rounds.to_string()) >> 20;
        let deaths = [Death::AtOnce, Death::AfterCreates, Death::AfterStatus];
        deaths.get(usize::try_from(chance % 9).unwrap()).copied().filter(|_| self.dies)
    }

    fn starts_what_it_may(&self, plan: &ParentPlan) -> Result<(), TestCaseError> {
        let by_name: BTreeMap<&str, &Unit> = plan.units.iter().map(|unit| (unit.name.as_str(), unit)).collect();
        for create in &plan.creates {
            prop_assert!(self.fixture.parent.spec["suspend"] != true);
            let step = self.case.step(&create.unit);
            let needed = step.needs.iter().map(|index| by_name[format!("s{index}").as_str()]);
            for needed in needed {
                let is_satisfied = needed.state == UnitState::Succeed
                    || self.runs_in_place(&create.unit, needed, &by_name)
                    || needed.state == UnitState::Failed && needed.tolerated
                    || needed.state == UnitState::Omitted && needed.reason == "NotNeeded";
                let may = match step.when {
                    None | Some("success") => is_satisfied,
                    _ => needed.state.is_terminal(),
                };
                // A further attempt does not wait for its dependencies again.
                let is_further = by_name[create.unit.as_str()].state == UnitState::Retrying;
                prop_assert!(may || is_further, "{} starts before {}", create.unit, needed.name);
            }
        }
        Ok(())
    }

    /// Returns true if the step comes after a step that handled the failure of `needed`, or a failure before `needed`.
    fn runs_in_place(&self, step: &str, needed: &Unit, by_name: &BTreeMap<&str, &Unit>) -> bool {
        let is_handled = !needed.handled_by.is_empty();
        let is_left_out = needed.state == UnitState::Omitted
            && ["FailureHandled", "DependencyNotMet"].contains(&needed.reason.as_str());
        let before = self.before(step);
        let has_handled = |index: &usize| {
            let unit = by_name[format!("s{index}").as_str()];
            self.case.steps[*index].handles && unit.state == UnitState::Succeed
        };
        (is_handled || is_left_out) && before.iter().any(has_handled)
    }

    /// Returns all steps before this step.
    fn before(&self, step: &str) -> BTreeSet<usize> {
        let mut before: BTreeSet<usize> = self.case.step(step).needs.iter().copied().collect();
        let mut open: Vec<usize> = before.iter().copied().collect();
        while let Some(index) = open.pop() {
            open.extend(self.case.steps[index].needs.iter().copied().filter(|needed| before.insert(*needed)));
        }
        before
    }

    /// Returns the children that have not ended, in a random order that does not depend on the order of steps.
    fn open(&self) -> Vec<(u64, String, String)> {
        let open = self.fixture.children.iter().filter(|child| !child.gone && child.progress.ended.is_none());
        let seed = u64::from(self.case.seed);
        let mut open: Vec<_> =
            open.map(|child| (mix(seed, &child.name), child.name.clone(), child.unit.clone().unwrap())).collect();
        open.sort();
        open
    }

    fn end(&mut self, name: &str, unit: &str) {
        let object = &self.fixture.objects[name];
        let attempt: usize = object["metadata"]["labels"]["oarlock.dev/attempt"].as_str().unwrap().parse().unwrap();
        let ends = &self.case.step(unit).ends;
        let end = match ends[attempt % ends.len()] {
            _ if object["spec"]["activeDeadlineSeconds"] == 1 => End::Ill,
            _ if self.is_healed => End::Well,
            end => end,
        };
        match end {
            End::Well => self.fixture.end_child(name, true),
            End::Ill => self.fixture.end_child(name, false),
            End::Evicted => {
                let report = PodReport { message: String::new(), is_infrastructure: true };
                self.fixture.pods.insert(name.to_owned(), report);
                self.fixture.end_child(name, false);
            }
            End::Deleted => self.fixture.vanish(name),
        }
    }

    /// Returns the outcome of every step.
    pub(super) fn outcome(&self) -> BTreeMap<String, String> {
        let of = |unit: &Unit| format!("{:?}/{}/{}/{}", unit.state, unit.reason, unit.attempt, unit.tolerated);
        self.fixture.memory.units.iter().map(|unit| (unit.name.clone(), of(unit))).collect()
    }

    /// Checks that every step has ended, or that the status says what keeps it.
    pub(super) fn is_at_rest(&self) -> Result<(), TestCaseError> {
        let units = self.fixture.memory.units.as_slice();
        let is_paused = self.fixture.condition("Paused").starts_with("True");
        let open: BTreeSet<&str> =
            units.iter().filter(|unit| !unit.state.is_terminal()).map(|unit| unit.name.as_str()).collect();
        for unit in units {
            let needs = &self.case.step(&unit.name).needs;
            let before = self.before(&unit.name);
            let may_handle = |(index, step): (usize, &StepCase)| {
                step.handles
                    && open.contains(format!("s{index}").as_str())
                    && step.needs.iter().any(|it| before.contains(it))
            };
            let waits = self.case.steps.iter().enumerate().any(may_handle)
                || needs.iter().any(|index| open.contains(format!("s{index}").as_str()))
                || unit.name.starts_with('z') && open.iter().any(|name| name.starts_with('s'));
            let is_right = match unit.state {
                state if state.is_terminal() => true,
                UnitState::Blocked => !unit.reason.is_empty() && !unit.message.is_empty(),
                UnitState::Waiting => waits || is_paused,
                UnitState::Retrying => is_paused,
                _ => false,
            };
            prop_assert!(is_right, "{} is {:?}", unit.name, unit.state);
        }
        let by_name: BTreeMap<&str, &Unit> = units.iter().map(|unit| (unit.name.as_str(), unit)).collect();
        for unit in units.iter().filter(|unit| unit.state == UnitState::Failed && unit.name.starts_with('s')) {
            let index: usize = unit.name[1..].parse().unwrap();
            let handlers =
                self.case.steps.iter().enumerate().filter(|(_, step)| step.handles && step.needs.contains(&index));
            let is_handled = handlers
                .into_iter()
                .any(|(handler, _)| by_name[format!("s{handler}").as_str()].state == UnitState::Succeed);
            prop_assert_eq!(!unit.handled_by.is_empty(), is_handled, "{:?}", unit);
        }
        let has_failed = units.iter().any(|unit| unit.has_failed() || unit.reason == "FlowTimeout");
        if open.is_empty() && !is_paused {
            prop_assert_eq!(self.fixture.state(), if has_failed { "Failed" } else { "Succeed" });
            let condition = self.fixture.condition(if has_failed { "Failed" } else { "Complete" });
            prop_assert!(condition.starts_with("True"), "{}", condition);
            prop_assert!(self.fixture.parent.status["completionTime"].is_string());
        } else {
            let said = ["Blocked", "Paused"].map(|kind| self.fixture.condition(kind));
            prop_assert!(said.iter().any(|said| said.starts_with("True")), "{:?}", said);
            prop_assert!(self.fixture.parent.status["completionTime"] == Value::Null);
        }
        Ok(())
    }

    /// Mends everything that was wrong and asks for a retry.
    pub(super) fn heal(&mut self) -> Result<(), TestCaseError> {
        self.fixture.add_template("absent", "u/2", job());
        self.fixture.edit("/timeoutSeconds", Value::Null);
        self.fixture.edit("/suspend", json!(false));
        self.fixture.parent.retry = Some("heal".to_owned());
        self.is_healed = true;
        prop_assert!(Arc::strong_count(&self.fixture.templates["absent"]) == 1);
        Ok(())
    }

    /// Checks that every step ended well, except steps that were not needed.
    pub(super) fn has_succeeded(&self) -> Result<(), TestCaseError> {
        for unit in self.fixture.memory.units.iter() {
            let is_unneeded = unit.state == UnitState::Omitted && unit.reason == "NotNeeded";
            prop_assert!(unit.state == UnitState::Succeed || is_unneeded, "{:?}", unit);
        }
        prop_assert_eq!(self.fixture.state(), "Succeed");
        Ok(())
    }
}
