//! Follows the plugin directory and the file of grants, each in its own task.
//!
//! Files are read on threads that may block, and loaded one at a time. So a large directory needs no more memory than its largest file.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use crate::load::directory::{Directory, ReadyFile, Scan};
use crate::load::events::FileEvents;
use crate::load::grants::{GrantsFile, GrantsLook};
use crate::load::loader::Effort;
use crate::registry::Registry;
use crate::rejection::causes;
use crate::status::{FirstScan, GrantsState};

/// The number of scans after which an unfinished file no longer delays the readiness of the host. It is two seconds.
const FIRST_SCANS: u32 = 20;

/// Runs file I/O, which may take any time. Returns `None` if it panicked.
async fn blocking<T: Send + 'static, R: Send + 'static>(
    on: &Arc<Mutex<T>>,
    run: impl FnOnce(&mut T) -> R + Send + 'static,
) -> Option<R> {
    let on = on.clone();
    let ended = spawn_blocking(move || run(&mut on.lock())).await;
    ended.inspect_err(|error| tracing::error!(%error, "a panic while reading a file; retrying")).ok()
}

/// Follows the file of grants until the task is dropped. This function never waits for the compilation of a component.
pub(crate) async fn follow_grants(registry: Arc<Registry>, file: GrantsFile) {
    let path = file.path().to_owned();
    let name = path.file_name().map(OsStr::to_owned);
    let mut events = FileEvents::subscribe(path.parent().unwrap_or(Path::new("/")), name.as_deref());
    let file = Arc::new(Mutex::new(file));
    let mut renamed = false;
    loop {
        let look = blocking(&file, move |file| file.look(renamed)).await.unwrap_or(GrantsLook::Unsettled);
        let unsettled = matches!(look, GrantsLook::Unsettled);
        match look {
            GrantsLook::Unchanged | GrantsLook::Unsettled => {}
            GrantsLook::Changed(Ok(grants)) => registry.set_grants(grants).await,
            GrantsLook::Changed(Err(error)) => {
                let (path, error) = (path.display(), causes(&error));
                match registry.refuse_grants(error.clone()) {
                    GrantsState::Refused(_) => {
                        tracing::error!(%path, %error, "failed to read the grants; the previous grants stay in force");
                    }
                    _ => {
                        tracing::error!(%path, %error, "failed to read the grants; the host grants nothing until you correct the file")
                    }
                }
            }
        }
        let news = events.next(unsettled).await;
        renamed = name.as_ref().is_some_and(|name| news.renamed.contains(name));
    }
}

/// The follower that puts the files of the plugin directory into a registry.
pub(crate) struct Follower {
    registry: Arc<Registry>,
    directory: Arc<Mutex<Directory>>,
}

impl Follower {
    pub(crate) fn new(registry: Arc<Registry>, directory: Directory) -> Self {
        Self { registry, directory: Arc::new(Mutex::new(directory)) }
    }

    /// Follows the plugin directory until the task is dropped. With `awaits_grants`, it begins once the grants were read or refused.
    pub(crate) async fn follow(self, awaits_grants: bool) {
        if awaits_grants {
            self.registry.grants_read().await;
        }
        let mut events = FileEvents::subscribe(self.directory.lock().path(), None);
        let mut renamed = BTreeSet::new();
        let mut scans = 0_u32;
        loop {
            let unsettled = self.scan(renamed).await;
            scans = scans.saturating_add(1);
            // A file that is never complete must not keep the host from being ready.
            if !unsettled || scans >= FIRST_SCANS {
                self.registry.first_scan_is(FirstScan::Done);
            }
            renamed = tokio::select! {
                news = events.next(unsettled) => {
                    if news.quiet {
                        self.registry.sweep().await;
                    }
                    news.renamed
                }
                () = self.registry.granted() => BTreeSet::new(),
            };
        }
    }

    /// Scans the plugin directory once and loads its changes. Returns true while a file is still being written.
    async fn scan(&self, renamed: BTreeSet<OsString>) -> bool {
        let again = self.registry.try_again().await;
        let scan = blocking(&self.directory, move |directory| directory.scan(&renamed, &again)).await;
        let Scan { rejected, unsettled, removed, ready } = scan.unwrap_or_default();
        // Removals come first. A link without its target loses its content, and the link itself is rejected.
        for source in &removed {
            self.registry.remove(source).await;
        }
        for (source, rejection) in rejected {
            self.registry.reject(&source, rejection).await;
        }
        for source in &unsettled {
            self.registry.set_unsettled(source).await;
        }
        let mut changing = !unsettled.is_empty();
        let mut others = Vec::new();
        for file in ready {
            changing |= !self.load(&file, Effort::Cache, &mut others).await;
        }
        self.registry.first_scan_is(FirstScan::Cached);
        // Each file is read again, so that only one file at a time is in memory.
        for file in others {
            changing |= !self.load(&file, Effort::Helper, &mut Vec::new()).await;
        }
        changing
    }

    /// Loads a file, or adds it to `others` if loading takes more than this effort. Returns false if the file has changed since the scan.
    async fn load(&self, file: &ReadyFile, effort: Effort, others: &mut Vec<ReadyFile>) -> bool {
        let wanted = file.clone();
        match blocking(&self.directory, move |directory| directory.read(&wanted)).await {
            Some(Ok(Some(bytes))) => {
                if !self.registry.load(&file.name, Arc::new(bytes), effort).await {
                    others.push(file.clone());
                }
                true
            }
            Some(Err(rejection)) => {
                self.registry.reject(&file.name, rejection).await;
                true
            }
            Some(Ok(None)) | None => false,
        }
    }
}
