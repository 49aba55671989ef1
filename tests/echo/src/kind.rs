//! EchoJob as a kind of the engine.

use oarlock_core::kind::plan::KindPlan;
use oarlock_core::kind::plan_kind::{PlanKind, Seen, WatchedObjects};
use oarlock_core::object::api_object::Kind;
use oarlock_core::requests::reads::Pending;
use serde_json::Value;

use crate::job::{EchoJob, echo_kind};
use crate::plan::plan;
use crate::pod::{EchoPod, pod_name};

/// The kind EchoJob.
#[derive(Clone, Copy, Debug)]
pub struct EchoJobs;

impl PlanKind for EchoJobs {
    type Object = EchoJob;
    type Child = EchoPod;
    type Memory = ();

    fn definition(&self) -> &'static str {
        include_str!("../echojob.yaml")
    }

    fn objects(&self) -> WatchedObjects {
        WatchedObjects { kind: echo_kind(), fields: &["/spec", "/status"] }
    }

    fn read(&self, document: &Value) -> Option<EchoJob> {
        EchoJob::read(document)
    }

    fn children(&self) -> Option<WatchedObjects> {
        Some(WatchedObjects { kind: Kind::pod(), fields: &["/status/phase"] })
    }

    fn read_child(&self, document: &Value) -> Option<EchoPod> {
        EchoPod::read(document)
    }

    /// A pod with another name is not the job's child, whatever owner it names.
    fn is_child(&self, job: &EchoJob, pod: &EchoPod) -> bool {
        pod.object.key.name == pod_name(job)
    }

    fn plan(&self, seen: &Seen<'_, Self>) -> Result<KindPlan<()>, Pending> {
        plan(seen)
    }
}
