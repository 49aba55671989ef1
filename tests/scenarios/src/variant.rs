//! The place of a known-bad host between the host and the API server.
//!
//! A known-bad host changes requests of the right host, by their purpose. The search has the known-bad hosts themselves.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request};

use crate::host_requests::{Reply, Upstream};

/// A host with one bug.
pub trait Variant: Send + Sync {
    /// Sends the request that the bug makes of `request`.
    fn carry<'a>(&'a self, request: Request<Bytes>, upstream: &'a Upstream) -> BoxFuture<'a, Reply>;
}

/// The purpose of a host's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// An eviction of the pod of this name.
    Evicts(String),
    /// A patch of the pod of this name.
    Marks(String),
    /// A write of a job's status.
    Records,
    /// A create or a patch of an OperationRecord.
    Details,
    /// Any other request.
    Other,
}

impl Deed {
    /// Returns the purpose of a request, by its method and its path.
    #[must_use]
    pub fn of(request: &Request<Bytes>) -> Self {
        let parts: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
        match (request.method(), parts.as_slice()) {
            (&Method::POST, [.., "pods", name, "eviction"]) => Self::Evicts((*name).to_owned()),
            (&Method::PATCH, [.., "pods", name]) => Self::Marks((*name).to_owned()),
            (&Method::PATCH, [.., "operationjobs", _, "status"]) => Self::Records,
            (&Method::POST, [.., "operationrecords"]) | (&Method::PATCH, [.., "operationrecords", _]) => Self::Details,
            _ => Self::Other,
        }
    }

    /// Returns true if the request changes a pod.
    #[must_use]
    pub fn acts(&self) -> bool {
        matches!(self, Self::Evicts(_) | Self::Marks(_))
    }
}
