//! The goals of a scenario, beside the reached figures. A row names a figure, its goal and the result. The reader compares them.

use serde_json::{Value, json};

/// The goal for one figure.
pub(crate) struct Goal {
    /// A JSON pointer to the figure within the spread of a run.
    pub(crate) figure: &'static str,
    /// The figure in words.
    pub(crate) name: &'static str,
    /// The goal in words.
    pub(crate) goal: &'static str,
}

/// Adds the rows of the goals to a run. `reached` is null for a figure that the run lacks.
pub(crate) fn beside(mut run: Value, goals: &[Goal]) -> Value {
    let row = |goal: &Goal| {
        let reached = run.get("spread").and_then(|spread| spread.pointer(goal.figure));
        json!({"name": goal.name, "goal": goal.goal, "reached": reached})
    };
    let rows: Vec<Value> = goals.iter().map(row).collect();
    if let Some(run) = run.as_object_mut() {
        run.insert("goals".to_owned(), rows.into());
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_that_was_not_measured_reached_nothing() {
        let run = json!({"spread": {"host": {"a": {"median": 2.0}}}});
        let goal = |figure| Goal { figure, name: "a", goal: "at most 3" };
        let run = beside(run, &[goal("/host/a"), goal("/ratios/a")]);
        assert_eq!(run["goals"][0]["reached"]["median"], json!(2.0));
        assert_eq!(run["goals"][1]["reached"], Value::Null);
    }
}
