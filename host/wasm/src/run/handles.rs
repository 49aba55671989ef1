//! The handles through which a plugin reads its job, its target and objects.

use std::sync::Arc;

use oarlock_core::object::api_object::Object;
use oarlock_core::plugin::visit::Visit;

/// A plugin's handle on a job. It shows the job as it was when the call began.
#[allow(unreachable_pub, reason = "the generated bindings name it in public items")]
pub struct JobHandle(pub(crate) Arc<Visit>);
/// A plugin's handle on a target.
#[allow(unreachable_pub, reason = "the generated bindings name it in public items")]
pub struct TargetHandle(pub(crate) Arc<Visit>);
/// A plugin's handle on an object.
#[allow(unreachable_pub, reason = "the generated bindings name it in public items")]
pub struct ObjectHandle(pub(crate) Arc<Object>);
