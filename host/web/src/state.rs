//! The state that all requests to the pages share.

use std::sync::Arc;

use http::HeaderMap;
use k8s_openapi::jiff::Timestamp;
use oarlock_core::object::quota_key::QuotaKey;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_page::PageAddress;
use oarlock_rest::{HostOf, Rest};
use tokio_util::sync::CancellationToken;

use crate::hub::{Hub, OpenPage};
use crate::log::LogReads;
use crate::shown::Shown;
use crate::sight::Sight;
use crate::slots::PageSlots;
use crate::viewer::{NoViewer, PageAdmission, PageViewer, viewer};

/// The state of the pages.
pub(crate) struct WebState {
    pub(crate) rest: Rest,
    pub(crate) admission: PageAdmission,
    pub(crate) hub: Arc<Hub>,
    pub(crate) shown: Arc<Shown>,
    pub(crate) streams: PageSlots,
    /// The reads of logs, if the pages show logs.
    pub(crate) logs: Option<LogReads>,
    pub(crate) host: Arc<HostOf>,
    pub(crate) stop: CancellationToken,
}

impl WebState {
    /// Returns the time in seconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        Timestamp::now().as_second()
    }

    /// Returns the viewer of a request, with the request counted against the viewer's rate limit.
    pub(crate) async fn viewer(&self, headers: &HeaderMap) -> Result<PageViewer, NoViewer> {
        let viewer = viewer(&self.rest, self.admission, headers, self.now()).await?;
        if let Some(caller) = &viewer.caller {
            self.rest.count_read(caller).await.map_err(NoViewer::Refused)?;
        }
        Ok(viewer)
    }

    /// Returns a sentence for all pages if no host leads.
    pub(crate) fn warning(&self) -> Option<String> {
        let why = (self.host)().err()?.describe();
        Some(format!("The page shows what the cluster stores, but nothing may go on: {why}."))
    }

    /// Returns the open page of an address.
    pub(crate) fn open(
        &self,
        viewer: &PageViewer,
        address: &PageAddress,
        sight: Sight,
    ) -> Result<Arc<OpenPage>, OpsRefusal> {
        let key = QuotaKey::of(viewer.name());
        let full = || {
            let message = "too many pages are open: close some of them, and load this one again".to_owned();
            OpsRefusal::new(Code::TooMany, message).after(10)
        };
        self.hub.open(address, sight, &key.text()).ok_or_else(full)
    }
}
