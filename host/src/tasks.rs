//! The tasks that the host itself runs, by kind.

use oarlock_core::ops_job::plan::{NO_FILES, NO_REGISTRY};
use oarlock_core::plugin::task::{COLLECT_LOGS, COPY_IMAGE};
use oarlock_kube::tasks::runner::{HostTask, HostTasks};

use crate::images::Images;
use crate::logs::Logs;

/// The runners of the host's tasks.
pub(crate) struct TaskRunner {
    /// The collector of logs, if the host keeps files.
    pub(crate) logs: Option<Logs>,
    /// The exporter of images, if the host has a registry to export to.
    pub(crate) images: Option<Images>,
}

impl HostTasks for TaskRunner {
    fn lacks(&self, kind: &str) -> Option<&'static str> {
        match kind {
            COLLECT_LOGS if self.logs.is_some() => None,
            COPY_IMAGE if self.images.is_some() => None,
            COLLECT_LOGS => Some(NO_FILES),
            COPY_IMAGE => Some(NO_REGISTRY),
            _ => Some("this host has no such task"),
        }
    }

    fn begin(&self, task: HostTask) {
        match (task.kind.as_str(), &self.logs, &self.images) {
            (COLLECT_LOGS, Some(logs), _) => logs.begin(task),
            (COPY_IMAGE, _, Some(images)) => images.begin(task),
            _ => {}
        }
    }

    fn end(&self, name: &str) {
        self.logs.iter().for_each(|logs| logs.end(name));
        self.images.iter().for_each(|images| images.end(name));
    }
}
