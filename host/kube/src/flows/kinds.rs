//! The kinds that flows are made of.

use oarlock_core::child::build::{JOB, OPERATION};
use oarlock_core::child::parent::{API_VERSION, ParentKind};
use oarlock_core::child::view::ChildKind;
use oarlock_core::cluster::object::Kind;

/// JobFlow or DaemonJob.
pub(crate) fn parent(kind: ParentKind) -> Kind {
    Kind::new(API_VERSION, kind.name())
}

/// JobTemplate.
pub(crate) fn template() -> Kind {
    Kind::new(API_VERSION, "JobTemplate")
}

/// JobRecord.
pub(crate) fn record() -> Kind {
    Kind::new("oarlock.dev/v1alpha1", "JobRecord")
}

/// Job or OperationJob.
pub(crate) fn child(kind: ChildKind) -> Kind {
    let (api_version, kind) = match kind {
        ChildKind::Job => JOB,
        ChildKind::Operation => OPERATION,
    };
    Kind::new(api_version, kind)
}
