//! Streams the watch events of one API to a closure. It drops `managedFields`, which take most of the memory.

use std::fmt::Debug;

use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// The longest duration of a watch. A longer watch would notice a dead server too late.
const WATCH_SECONDS: u32 = 50;

/// Delivers events until the future is dropped. The watcher retries failures after a backoff.
pub(crate) async fn deliver<K>(api: Api<K>, mut sink: impl FnMut(watcher::Event<K>))
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => sink(event.modify(|object| object.managed_fields_mut().clear())),
            Err(failure) => tracing::debug!(%failure, "a watch of the world broke off and is repeated"),
        }
    }
}
