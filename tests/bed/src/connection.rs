//! The connection between one client and its API server: it can be cut, its watches can be frozen, and they can be severed.
//!
//! Takes bodies of watches; yields the same, which end when the connection is cut or their kind is severed, and bring nothing
//! while their kind is frozen. May not change what passes.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::watch;

use crate::interception::{Body, BoxError};

/// A connection. Clones are the same one.
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

    /// Whether this kind is severed.
    pub(crate) fn is_severed(&self, plural: &str) -> bool {
        self.severed.borrow().contains(plural)
    }

    /// Resolves once this kind is severed no more.
    pub(crate) async fn until_mended(&self, plural: &str) {
        drop(self.severed.subscribe().wait_for(|severed| !severed.contains(plural)).await);
    }

    async fn until_severed(&self, plural: &str) {
        drop(self.severed.subscribe().wait_for(|severed| severed.contains(plural)).await);
    }

    /// What `carried` yields, unless the connection is cut first.
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

    /// The body of a watch.
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

/// What a client gets from a connection that is cut.
fn off() -> BoxError {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, "the wire is cut").into()
}

/// The kind that a request watches, if it does.
pub(crate) fn watched(uri: &Uri) -> Option<String> {
    let watches =
        uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1"));
    watches.then(|| last_of(uri))
}

/// The last word of a path: the plural of the kind that a list or a watch is of.
pub(crate) fn last_of(uri: &Uri) -> String {
    uri.path().rsplit('/').next().unwrap_or_default().to_owned()
}
