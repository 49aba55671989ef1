//! ActionPlugin as a kind of the engine: its status follows the plugin in the host's process.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::action_plugin::facts::{PluginFacts, facts_of};
use crate::action_plugin::status::ActionPluginStatus;
use crate::action_plugin::stored::{StoredActionPlugin, action_plugin_kind};
use crate::kind::plan::{KindPlan, NewStatus, StoreTime};
use crate::kind::plan_kind::{NoChild, PlanKind, Seen, WatchedObjects};
use crate::object::time::{after_seconds, read_time};
use crate::requests::reads::Pending;

/// Seconds between two writes that only bring new figures, such as the number of jobs.
pub const FIGURES_EVERY: i64 = 300;

/// The kind ActionPlugin.
#[derive(Clone, Copy, Debug, Default)]
pub struct ActionPlugins;

impl PlanKind for ActionPlugins {
    type Object = StoredActionPlugin;
    type Child = NoChild;
    type Memory = ();

    fn definition(&self) -> &'static str {
        oarlock_api::ACTION_PLUGIN_CRD
    }

    fn objects(&self) -> WatchedObjects {
        WatchedObjects { kind: action_plugin_kind(), fields: &["/spec", "/status", "/metadata/generation"] }
    }

    fn read(&self, document: &Value) -> Option<StoredActionPlugin> {
        StoredActionPlugin::read(document)
    }

    fn plan(&self, seen: &Seen<'_, Self>) -> Result<KindPlan<()>, Pending> {
        let (object, now) = (seen.object, seen.now);
        let facts = seen.answers.to(&facts_of(&object.object.key.name))?.one::<PluginFacts>();
        let facts = facts.ok_or_else(|| Pending::failed("the host does not say how its plugin is"))?;
        let (before, status) = (&object.status, ActionPluginStatus::of(object, &facts, now));
        // Figures change without an event.
        let again = Some(after_seconds(now, FIGURES_EVERY));
        if object.object.terminating() || status.is_same(before) {
            return Ok(KindPlan { again, ..KindPlan::default() });
        }
        let when = StoreTime::InTurn((status.is_same_state(before)).then(|| figures_due(before)).flatten());
        Ok(KindPlan { status: Some(NewStatus { body: json!(status), when }), again, ..KindPlan::default() })
    }
}

/// Returns the time from which new figures may be written. A stored time in the future is not believed.
fn figures_due(before: &ActionPluginStatus) -> Option<Timestamp> {
    read_time(Some(&before.reported_at)).map(|last| after_seconds(last, FIGURES_EVERY))
}
