//! The writes of JobRecords.

use std::collections::BTreeMap;

use futures::StreamExt;
use oarlock_core::attempts::build::OWNER_UID;
use oarlock_core::attempts::parent::{Parent, record_key};
use oarlock_core::attempts::status::{lines_of, record_name};
use oarlock_core::attempts::unit::Unit;
use oarlock_core::object::api_object::ObjectKey;
use oarlock_core::object::fields::text;
use oarlock_core::requests::writes::{Lane, Stopped, Write};
use serde_json::{Value, json};

use crate::flows::port::Flows;
use crate::lease::fence::Fence;
use crate::send::outcome::stopped;

/// The number of JobRecords of one object that are in flight at once.
const AT_ONCE: usize = 4;

/// The units of one JobRecord.
#[derive(Clone, Copy, Debug)]
pub struct RecordUnits<'a> {
    /// The number of the record.
    pub number: usize,
    /// The units of the record.
    pub units: &'a [Unit],
}

impl Flows {
    /// Writes JobRecords at the known `versions`. Returns the new version of each record, or the reason why it
    /// is unknown whether the record was written.
    pub async fn write_records(
        &self,
        parent: &Parent,
        operation_records: Vec<RecordUnits<'_>>,
        versions: &BTreeMap<usize, String>,
        fence: &Fence,
    ) -> Vec<(usize, Result<String, Stopped>)> {
        let writes = operation_records.into_iter().map(|RecordUnits { number, units }| async move {
            let record = Record::of(parent, number, units);
            (number, self.write_record(parent, record, versions.get(&number).cloned(), fence).await)
        });
        let writes: Vec<_> = writes.collect();
        futures::stream::iter(writes).buffer_unordered(AT_ONCE).collect().await
    }

    async fn write_record(
        &self,
        parent: &Parent,
        record: Record,
        known: Option<String>,
        fence: &Fence,
    ) -> Result<String, Stopped> {
        let link = self.link(parent.kind);
        let known = match known {
            Some(version) => Some(version),
            None => self.stored_version(&record).await?,
        };
        if let Some(version) = known {
            match link.write(&record.patch(&version), Lane::Record, fence).await {
                // A user deleted the record.
                Err(Stopped::Gone) => {}
                written => return written.map(|reply| version_of(&reply)),
            }
        }
        let stored = link.write(&record.create(parent), Lane::Record, fence).await?;
        if stored.get("units") == Some(&record.lines) {
            return Ok(version_of(&stored));
        }
        // A create without an answer has made the record meanwhile, with the units of that time.
        link.write(&record.patch(&version_of(&stored)), Lane::Record, fence).await.map(|reply| version_of(&reply))
    }

    async fn stored_version(&self, record: &Record) -> Result<Option<String>, Stopped> {
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

/// The desired state of a JobRecord.
struct Record {
    key: ObjectKey,
    /// The label that finds the record. With `owners`, the next write restores it if a user removed it.
    labels: Value,
    owners: Value,
    number: usize,
    lines: Value,
}

impl Record {
    fn of(parent: &Parent, number: usize, units: &[Unit]) -> Self {
        Self {
            key: record_key(&parent.namespace, record_name(parent, number)),
            labels: json!({OWNER_UID: parent.uid}),
            owners: json!([parent.owner_reference()]),
            number,
            lines: lines_of(units).into(),
        }
    }

    /// Returns the change of the stored record at the version that the host saw. A late write cannot change a newer version.
    fn patch(&self, version: &str) -> Write {
        let Self { key, labels, owners, number, lines } = self;
        let metadata = json!({"resourceVersion": version, "labels": labels, "ownerReferences": owners});
        Write::patch(key, json!({"metadata": metadata, "shard": number, "units": lines}))
    }

    fn create(&self, parent: &Parent) -> Write {
        let Self { key: object, labels, owners, number, lines } = self;
        let ObjectKey { kind, namespace, name } = object;
        let metadata = json!({"name": name, "namespace": namespace, "labels": labels, "ownerReferences": owners});
        let body = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "shard": number,
            "units": lines});
        Write::Create { object: object.clone(), body, owner_uid: parent.uid.clone() }
    }
}

fn version_of(object: &Value) -> String {
    text(object, "/metadata/resourceVersion").unwrap_or_default().to_owned()
}
