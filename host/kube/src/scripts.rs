//! Scripts of tasks: each is made once in a term, whatever number of tasks run it, and removed once it is idle.
//!
//! What is decided of them is `oarlock_core::cluster::scripts`. A term begins knowing none: another leader may have removed
//! some.

use std::collections::BTreeSet;

use oarlock_core::cluster::object::{Kind, Object};
use oarlock_core::cluster::scripts::{SCRIPT, ScriptStep, made_by};
use oarlock_core::cluster::writes::{Stopped, Write};
use serde_json::Value;

use crate::cluster::{Cluster, Link};
use crate::lease::Fence;
use crate::outcome::sentence;
use crate::transport::list::Collection;
use crate::watch::projection::Projection;

impl Link {
    /// The reply to a write that makes a script, where none has to be sent.
    pub(crate) fn without_request(&self, write: &Write) -> Option<Result<Value, Stopped>> {
        match self.scripts.lock().wanted(made_by(write)?) {
            ScriptStep::Make => None,
            ScriptStep::Nothing => Some(Ok(Value::Null)),
            ScriptStep::Wait => Some(Err(Stopped::Throttled { retry_after: Some(1) })),
        }
    }

    /// The deletions of the scripts that nothing has used for some sweeps.
    async fn idle_scripts(&self, namespace: &str) -> Result<Vec<Write>, String> {
        let kind = Kind::new("v1", "ConfigMap");
        let Some(named) = self.jobs.scripts_in_use() else { return Ok(Vec::new()) };
        let resource = self.resource(&kind).await.map_err(|failure| failure.message)?;
        let from = Collection { resource: &resource, namespace: Some(namespace), labels: Some(SCRIPT), fields: None };
        let read = |item: Value| Object::slim(&item, &kind, &[]).map(|script| (script.key, script.uid));
        let listed = self.transport.list(from, &Projection::of_object(&[]), read).await;
        let all = listed.map_err(|error| sentence(&error))?.items;
        let pods = self.objects.store.all(&Kind::pod(), Some(namespace));
        let mounted = pods.iter().filter_map(|pod| pod.labels.get(SCRIPT).map(str::to_owned));
        let used: BTreeSet<String> = mounted.chain(named).collect();
        Ok(self.scripts.lock().sweep(&all, &used))
    }
}

impl Cluster {
    /// Removes the scripts of tasks that nothing has used for some sweeps.
    ///
    /// # Errors
    /// The API server's sentence, where they cannot be listed.
    pub async fn remove_idle_scripts(&self, fence: &Fence) -> Result<(), String> {
        for write in self.link.idle_scripts(&self.tasks().namespace).await? {
            let name = write.object().name.clone();
            self.clean_up(vec![write], fence).await;
            self.link.scripts.lock().forget(&name);
        }
        Ok(())
    }
}
