//! The scripts of tasks. A term creates each script once for any number of tasks, and removes idle scripts.
//!
//! The decisions are in `oarlock_core::requests::scripts`. A term begins with no known scripts, because another leader may have removed
//! some.

use std::collections::BTreeSet;

use oarlock_core::object::api_object::{Kind, Object};
use oarlock_core::requests::scripts::{SCRIPT, ScriptStep, made_by};
use oarlock_core::requests::writes::{Stopped, Write};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::error_chain::error_chain;
use crate::lease::fence::Fence;
use crate::link::Link;
use crate::transport::list::Collection;
use crate::transport::projection::Projection;

impl Link {
    /// Returns the reply to a write that creates a script, if no request is necessary.
    pub(crate) fn without_request(&self, write: &Write) -> Option<Result<Value, Stopped>> {
        match self.scripts.lock().wanted(made_by(write)?) {
            ScriptStep::Make => None,
            ScriptStep::Nothing => Some(Ok(Value::Null)),
            ScriptStep::Wait => Some(Err(Stopped::Throttled { retry_after: Some(1) })),
        }
    }

    /// Returns the writes that delete the scripts that no task has used for some sweeps.
    async fn idle_scripts(&self, namespace: &str) -> Result<Vec<Write>, String> {
        let kind = Kind::new("v1", "ConfigMap");
        let Some(named) = self.jobs.scripts_in_use() else { return Ok(Vec::new()) };
        let resource = self.resource(&kind).await.map_err(|failure| failure.message)?;
        let from = Collection { resource: &resource, namespace: Some(namespace), labels: Some(SCRIPT), fields: None };
        let read = |item: Value| Object::slim(&item, &kind, &[]).map(|script| (script.key, script.uid));
        let listed = self.transport.list(from, &Projection::of_object(&[]), read).await;
        let all = listed.map_err(|error| error_chain(&error))?.items;
        let pods = self.objects.store.all(&Kind::pod(), Some(namespace));
        let mounted = pods.iter().filter_map(|pod| pod.labels.get(SCRIPT).map(str::to_owned));
        let used: BTreeSet<String> = mounted.chain(named).collect();
        Ok(self.scripts.lock().sweep(&all, &used))
    }
}

impl Cluster {
    /// Removes the scripts of tasks that no task has used for some sweeps.
    ///
    /// # Errors
    /// If the scripts cannot be listed, with the message of the API server.
    pub async fn remove_idle_scripts(&self, fence: &Fence) -> Result<(), String> {
        for write in self.link.idle_scripts(&self.tasks().namespace).await? {
            let name = write.object().name.clone();
            self.clean_up(vec![write], fence).await;
            self.link.scripts.lock().forget(&name);
        }
        Ok(())
    }
}
