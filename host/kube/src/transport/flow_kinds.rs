//! The kinds of the objects of flows.

use oarlock_core::attempts::build::{JOB, OPERATION};
use oarlock_core::attempts::parent::{API_VERSION, ParentKind};
use oarlock_core::attempts::view::ChildKind;
use oarlock_core::object::api_object::Kind;

/// Returns the kind JobFlow or DaemonJob.
pub(crate) fn parent(kind: ParentKind) -> Kind {
    Kind::new(API_VERSION, kind.name())
}

/// Returns the kind JobTemplate.
pub(crate) fn template() -> Kind {
    Kind::new(API_VERSION, "JobTemplate")
}

/// Returns the kind JobRecord.
pub(crate) fn record() -> Kind {
    Kind::new("oarlock.dev/v1alpha1", "JobRecord")
}

/// Returns the kind Job or OperationJob.
pub(crate) fn child(kind: ChildKind) -> Kind {
    let (api_version, kind) = match kind {
        ChildKind::Job => JOB,
        ChildKind::Operation => OPERATION,
    };
    Kind::new(api_version, kind)
}
