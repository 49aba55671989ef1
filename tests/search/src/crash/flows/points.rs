//! The points of flows: each kind of trouble at each write of a JobFlow and of a DaemonJob.

use super::FlowScript;
use super::subject::Subject;
use crate::crash::points::{Point, acts, calm, late, spread, troubled};

/// Returns all points.
///
/// # Errors
/// If an undisturbed script breaks a property.
pub fn all() -> anyhow::Result<Vec<Point<FlowScript>>> {
    let mut points = Vec::new();
    for subject in Subject::ALL {
        let script = FlowScript::of(subject);
        let undisturbed = calm(&script)?;
        println!("{subject:?}: {} writes without trouble", acts(&undisturbed).count());
        points.extend(troubled(&script, &undisturbed));
        points.extend(late(&script, &undisturbed));
        let script = FlowScript { fails_over: true, ..script };
        points.extend(troubled(&script, &calm(&script)?));
    }
    Ok(spread(points))
}
