//! The writes of JobRecords.

use std::collections::BTreeMap;

use futures::StreamExt;
use oarlock_core::attempts::parent::{Parent, ParentKind};
use oarlock_core::attempts::writes::{JobRecord, RecordUnits};
use oarlock_core::object::fields::text;
use oarlock_core::requests::writes::{Lane, Stopped};
use serde_json::Value;

use crate::flows::port::Flows;
use crate::lease::fence::Fence;
use crate::send::outcome::stopped;

/// The number of JobRecords of one object that are in flight at once.
const AT_ONCE: usize = 4;

impl Flows {
    /// Writes JobRecords of an object at the known `versions`. Returns the new version of each record, or the reason why it
    /// is unknown whether the record was written.
    pub async fn write_records(
        &self,
        parent: &Parent,
        records: Vec<RecordUnits<'_>>,
        versions: &BTreeMap<usize, String>,
        fence: &Fence,
    ) -> Vec<(usize, Result<String, Stopped>)> {
        // Each record is built right before its write, so that only a few are in memory.
        let writes = records.into_iter().map(|units| async move {
            let known = versions.get(&units.number).cloned();
            (units.number, self.write_record(parent.kind, &JobRecord::of(parent, units), known, fence).await)
        });
        let writes: Vec<_> = writes.collect();
        futures::stream::iter(writes).buffer_unordered(AT_ONCE).collect().await
    }

    async fn write_record(
        &self,
        kind: ParentKind,
        record: &JobRecord,
        known: Option<String>,
        fence: &Fence,
    ) -> Result<String, Stopped> {
        let link = self.link(kind);
        let known = match known {
            Some(version) => Some(version),
            None => self.stored_version(record).await?,
        };
        if let Some(version) = known {
            match link.write(&record.patch(&version), Lane::Record, fence).await {
                // A user deleted the record.
                Err(Stopped::Gone) => {}
                written => return written.map(|reply| version_of(&reply)),
            }
        }
        let stored = link.write(&record.create(), Lane::Record, fence).await?;
        if stored.get("units") == Some(&record.units) {
            return Ok(version_of(&stored));
        }
        // A create without an answer has made the record meanwhile, with the units of that time.
        link.write(&record.patch(&version_of(&stored)), Lane::Record, fence).await.map(|reply| version_of(&reply))
    }

    async fn stored_version(&self, record: &JobRecord) -> Result<Option<String>, Stopped> {
        match self.cluster.link.read(&record.key).await {
            Ok(Ok(stored)) => Ok(Some(version_of(&stored))),
            Ok(Err(error)) => match stopped(&error) {
                Stopped::Gone => Ok(None),
                stopped => Err(stopped),
            },
            Err(failed) if failed.refused => Err(Stopped::Refused { message: failed.message }),
            Err(failed) => Err(Stopped::Unknown { message: failed.message }),
        }
    }
}

fn version_of(object: &Value) -> String {
    text(object, "/metadata/resourceVersion").unwrap_or_default().to_owned()
}
