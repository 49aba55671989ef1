//! The points of flows: trouble of each kind at each write of a JobFlow and of a DaemonJob.

use super::FlowScript;
use super::subject::Subject;
use crate::crash::points::{Point, acts, calm, late, spread, troubled};

/// All points.
///
/// # Errors
/// If a script that nothing happens to does not go as it should.
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
