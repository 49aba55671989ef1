//! The connection between one client and its API server. A test can cut the connection, freeze watches and sever a kind.
//!
//! A watch ends when the connection is cut or its kind is severed. It delivers nothing while its kind is frozen. This module does
//! not change the bytes that pass.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::watch;

use crate::interception::{Body, BoxError};

/// A connection between a client and its API server. Clones share one connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    cut: Arc<watch::Sender<bool>>,
    frozen: Arc<watch::Sender<BTreeSet<String>>>,
    severed: Arc<watch::Sender<BTreeSet<String>>>,
}

impl Default for Connection {
    fn default() -> Self {
        let (frozen, severed) = (Arc::new(watch::Sender::default()), Arc::new(watch::Sender::default()));
        Self { cut: Arc::new(watch::Sender::new(false)), frozen, severed }
    }
}

impl Connection {
    pub(crate) fn cut(&self, cut: bool) {
        self.cut.send_replace(cut);
    }

    pub(crate) fn freeze(&self, plural: &str) {
        self.frozen.send_modify(|frozen| frozen.extend([plural.to_owned()]));
    }

    pub(crate) fn thaw(&self) {
        self.frozen.send_modify(BTreeSet::clear);
    }

    pub(crate) fn sever(&self, plural: &str) {
        self.severed.send_modify(|severed| severed.extend([plural.to_owned()]));
    }

    pub(crate) fn mend(&self) {
        self.severed.send_modify(BTreeSet::clear);
    }

    /// Returns true if this kind is severed.
    pub(crate) fn is_severed(&self, plural: &str) -> bool {
        self.severed.borrow().contains(plural)
    }

    /// Waits until this kind is no longer severed.
    pub(crate) async fn until_mended(&self, plural: &str) {
        drop(self.severed.subscribe().wait_for(|severed| !severed.contains(plural)).await);
    }

    async fn until_severed(&self, plural: &str) {
        drop(self.severed.subscribe().wait_for(|severed| severed.contains(plural)).await);
    }

    /// Returns the result of `carried`, unless the connection is cut first.
    pub(crate) async fn unless_cut<T>(
        &self,
        carried: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, BoxError> {
        tokio::select! {
            biased;
            () = self.until_cut() => Err(off()),
            answer = carried => answer,
        }
    }

    async fn until_cut(&self) {
        // The sender lives as long as this connection.
        drop(self.cut.subscribe().wait_for(|cut| *cut).await);
    }

    async fn until_thawed(&self, plural: &str) {
        drop(self.frozen.subscribe().wait_for(|frozen| !frozen.contains(plural)).await);
    }

    /// Wraps the body of a watch, so that the watch can be cut, severed and frozen.
    pub(crate) fn stream(&self, body: Body, plural: String) -> Body {
        let begun = Some((self.clone(), body, plural));
        let frames = futures::stream::unfold(begun, |state| async {
            let (connection, mut body, plural) = state?;
            let next = async {
                let frame = body.frame().await;
                connection.until_thawed(&plural).await;
                frame
            };
            let frame: Result<Frame<Bytes>, BoxError> = tokio::select! {
                biased;
                () = connection.until_cut() => return Some((Err(off()), None)),
                () = connection.until_severed(&plural) => return None,
                frame = next => frame?,
            };
            Some((frame, Some((connection, body, plural))))
        });
        StreamBody::new(frames).boxed_unsync()
    }
}

/// Returns the error that a client gets from a connection that is cut.
fn off() -> BoxError {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, "the wire is cut").into()
}

/// Returns the plural of the kind that a request watches. Returns `None` if the request is not a watch.
pub(crate) fn watched(uri: &Uri) -> Option<String> {
    let watches =
        uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1"));
    watches.then(|| last_of(uri))
}

/// Returns the last segment of a path: the plural of the kind, if the request is a list or a watch.
pub(crate) fn last_of(uri: &Uri) -> String {
    uri.path().rsplit('/').next().unwrap_or_default().to_owned()
}
