//! The request to run failed and omitted units again. Source: docs/jobflow.md 2.8.

use k8s_openapi::jiff::Timestamp;

use crate::flow_view::FlowView;
use crate::shown_text::escaped;
use crate::unit_state::ShownState;
use crate::unit_view::UnitView;

/// The most names that a refusal lists.
const MOST_NAMES: usize = 40;

/// Returns the value of the annotation that runs the `named` units again, or all units: `<token>` or `<token>/<unit>,...`. The token is
/// `now` in UTC to the millisecond, so that each request is new.
///
/// # Errors
///
/// If a name belongs to no unit, or if the request would run no unit, with a message for the user.
pub fn retry_value(view: &FlowView, named: &[String], now: Timestamp) -> Result<String, String> {
    let (handle, unit) = (view.handle(), view.kind.unit());
    let is_known = |name: &&String| view.units().iter().any(|unit| unit.name == **name);
    let unknown: Vec<&str> = named.iter().filter(|name| !is_known(name)).map(String::as_str).collect();
    // If entries are missing, an unknown name may belong to a missing entry.
    if !unknown.is_empty() && view.missing == 0 {
        return Err(format!("{handle} has no {unit} {}: {}", shown(&unknown), known(view)));
    }
    if let Some(name) = named.iter().find(|name| name.is_empty() || name.contains(['/', ','])) {
        return Err(format!("{name:?} is no name of a {unit}"));
    }
    let is_meant = |unit: &&UnitView| named.is_empty() || named.contains(&unit.name);
    let would_run = |unit: &UnitView| matches!(unit.state, ShownState::Failed | ShownState::Omitted);
    let is_paused = view.notices.iter().any(|notice| notice.condition == "Paused");
    if view.missing == 0 && !is_paused && !view.units().iter().filter(is_meant).any(would_run) {
        let whose = match named {
            [] => format!("no {unit} has"),
            [name] => format!("{unit} {} has not", escaped(name)),
            names => format!("none of {} has", escaped(&names.join(", "))),
        };
        return Err(format!("{handle}: {whose} failed or been omitted, so there is nothing to retry"));
    }
    let token = format!("{now:.3}");
    Ok(if named.is_empty() { token } else { format!("{token}/{}", named.join(",")) })
}

fn known(view: &FlowView) -> String {
    let names: Vec<&str> = view.units().iter().take(MOST_NAMES).map(|unit| unit.name.as_str()).collect();
    let left = view.units().len().saturating_sub(names.len());
    let unit = view.kind.unit();
    match (names.is_empty(), left) {
        (true, _) => format!("it has no {unit}s"),
        (_, 0) => format!("its {unit}s are {}", shown(&names)),
        _ => format!("its {unit}s are {} and {left} more", shown(&names)),
    }
}

fn shown(names: &[&str]) -> String {
    escaped(&names.join(", ")).into_owned()
}
