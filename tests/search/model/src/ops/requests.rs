//! The requests of rounds of OpsJobs, and their results. This module does what `host/src/engine.rs` and
//! `host/kube/src/kinds/port.rs` do.

use oarlock_core::kind::plan::{KindPlan, NewStatus};
use oarlock_core::ops_job::names::{FINALIZER, ops_key, ops_kind};
use oarlock_core::requests::writes::{FailedWrite, Stopped, Write};
use serde_json::{Value, json};

use crate::ops::api::{ChildDocument, OpsDocument, OpsReply};
use crate::ops::round::{OUTCOMES, OpsRequest, RECORDED};
use crate::ops::scenario::OpsScenario;
use crate::ops::state::OpsState;
use crate::ops::switch::OpsSwitch;
use crate::part::Part;
use crate::record::{Fate, unknown};

impl OpsState {
    /// Completes the next request of a round with this outcome.
    pub fn arrive(&mut self, scenario: &OpsScenario, h: usize, name: &str, fate: Fate) {
        let Some(term) = &mut self.hosts[h].term else { return };
        let Some(mut round) = term.rounds.remove(name).map(Part::take) else { return };
        let Some(request) = round.requests.pop_front() else { return };
        let is_of_status = request.is_of_status();
        match self.send(h, &request, fate) {
            // The request made another version of the OpsJob, which leads to another round.
            Ok(()) if request.write.object().kind == ops_kind() && !is_of_status => {
                round.requests.clear();
                round.requeue_at = None;
            }
            Ok(()) => {}
            Err(stopped) => {
                round.is_in_trouble = true;
                round.requests.clear();
                if !is_of_status {
                    // The observed state is valid even if a write failed, so the host stores the status of another plan.
                    let failed = [FailedWrite { write: request.write, stopped }];
                    let plan = self.plan(scenario, h, &round.job, &failed).unwrap_or_default();
                    let status = plan.status.map(|status| rewritten(scenario, status_write(&round.job, &status)));
                    round.requests.extend(status.map(|write| OpsRequest { write, ..request }));
                }
            }
        }
        self.go_on_with(h, name, round);
    }

    fn send(&mut self, h: usize, request: &OpsRequest, fate: Fate) -> Result<(), Stopped> {
        let write = &request.write;
        let is_allowed = self.is_allowed(request);
        let outcome = match fate {
            Fate::Done => self.serve(write, is_allowed),
            Fate::Lost => self.serve(write, is_allowed).and_then(|_| Err(unknown())),
            Fate::Late => {
                self.astray(request);
                Err(unknown())
            }
        };
        let (host, name) = (&mut self.hosts[h], &write.object().name);
        let is_own = write.object().kind == ops_kind();
        let stopped = match outcome {
            Ok(OpsReply::Job(job)) => {
                host.cache(|view| view.put_job(&job));
                return Ok(());
            }
            Ok(OpsReply::Child(child)) => {
                host.cache(|view| view.put_child(&child));
                return Ok(());
            }
            Ok(OpsReply::ChildGone) => Stopped::Gone,
            Err(stopped) => stopped,
        };
        match &stopped {
            _ if is_own => host.view.edit(|view| view.doubt(name)),
            Stopped::Gone => write.uid().into_iter().for_each(|uid| host.cache(|view| view.drop_child(name, uid))),
            // Without a newer view, the next write would meet the same conflict.
            Stopped::Conflict => {
                let stored = self.api.children.get(name).cloned();
                host.cache(|view| view.put_child(stored.as_ref()?));
            }
            _ => {}
        }
        if stopped == Stopped::Gone { Ok(()) } else { Err(stopped) }
    }
}

/// Returns the request that replaces the status of an OpsJob at the version that the host saw.
pub fn status_write(job: &OpsDocument, status: &NewStatus) -> Write {
    Write::status(ops_key(job.name()), &job.job.view.version, &status.body)
}

/// Returns a request as the driver sends it.
pub fn rewritten(scenario: &OpsScenario, mut write: Write) -> Write {
    match &mut write {
        Write::Patch { body: Value::Array(operations), subresource, .. } => {
            let rule = match subresource {
                Some(_) => OpsSwitch::WritesStatusWithoutVersion,
                None => OpsSwitch::PatchesWithoutVersion,
            };
            operations.retain(|operation| !scenario.lacks(rule) || operation["op"] != "test");
        }
        Write::Patch { body: Value::Object(fields), .. } if scenario.lacks(OpsSwitch::PausesByName) => {
            fields.remove("metadata");
        }
        Write::Create { body, .. } if scenario.lacks(OpsSwitch::CreatesUnpaused) => {
            body["spec"]["paused"] = json!(false);
        }
        _ => {}
    }
    write
}

/// Returns the request that a driver with a broken rule makes too early.
pub fn hasty_write(
    scenario: &OpsScenario,
    job: &OpsDocument,
    child: &ChildDocument,
    plan: &KindPlan<()>,
) -> Option<Write> {
    let (stored, of_child) = (&job.job, job.job.view.child_key());
    let before = &stored.view.status;
    let is_unrecorded = !before.other_fields.contains_key(RECORDED) && !job.is_stopped() && !before.has_ended();
    if scenario.lacks(OpsSwitch::UnpausesBeforeItRecords) && is_unrecorded {
        return Some(Write::patch(&of_child, json!({"metadata": {"uid": child.child.uid}, "spec": {"paused": false}})));
    }
    let stores = |status: &NewStatus| {
        let conditions = status.body["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|condition| condition["type"] == OUTCOMES))
    };
    if scenario.lacks(OpsSwitch::DeletesBeforeItStoresOutcomes)
        && !before.has(OUTCOMES)
        && plan.status.as_ref().is_some_and(stores)
    {
        return Some(Write::delete(of_child, &child.child.uid, Some(child.child.version.to_string())));
    }
    let place = stored.finalizers.and_then(|all| all.place(FINALIZER)).filter(|_| before.has_ended())?;
    let operations = json!([{"op": "test", "path": "/metadata/resourceVersion", "value": stored.view.version},
        {"op": "remove", "path": format!("/metadata/finalizers/{place}")}]);
    (scenario.lacks(OpsSwitch::DropsFinalizerEarly) && child.child.deleting)
        .then(|| Write::patch(&ops_key(job.name()), operations))
}
