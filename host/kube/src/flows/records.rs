//! The writes of JobRecords.

use std::collections::BTreeMap;

use futures::StreamExt;
use oarlock_core::child::build::OWNER_UID;
use oarlock_core::child::fields::text;
use oarlock_core::child::parent::Parent;
use oarlock_core::child::status::{lines_of, record_name};
use oarlock_core::child::unit::Unit;
use oarlock_core::cluster::object::ObjectKey;
use oarlock_core::cluster::writes::{Stopped, Write};
use serde_json::{Value, json};

use crate::flows::kinds;
use crate::flows::port::Flows;
use crate::flows::writes::key;
use crate::lease::Fence;
use crate::outcome::stopped;

/// JobRecords of one object in flight.
const AT_ONCE: usize = 4;

impl Flows {
    /// Writes JobRecords: their numbers and what each holds, at the `versions` that are known. Yields the version of each, or
    /// the reason why it is not known to be written.
    pub async fn write_records(
        &self,
        parent: &Parent,
        shards: Vec<(usize, &[Unit])>,
        versions: &BTreeMap<usize, String>,
        fence: &Fence,
    ) -> Vec<(usize, Result<String, Stopped>)> {
        let writes = shards.into_iter().map(|(number, units)| async move {
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
            match link.write(&record.patch(&version), fence).await {
                // Somebody deleted it.
                Err(Stopped::Gone) => {}
                written => return written.map(|reply| version_of(&reply)),
            }
        }
        let stored = link.write(&record.create(parent), fence).await?;
        if stored.get("units") == Some(&record.lines) {
            return Ok(version_of(&stored));
        }
        // One whose create had no answer has come to be meanwhile, with what it was to hold then.
        link.write(&record.patch(&version_of(&stored)), fence).await.map(|reply| version_of(&reply))
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

/// A JobRecord as it is to be.
struct Record {
    key: ObjectKey,
    /// What it is found by, and whose it is. Where somebody took that off, the next write puts it back.
    labels: Value,
    owners: Value,
    number: usize,
    lines: Value,
}

impl Record {
    fn of(parent: &Parent, number: usize, units: &[Unit]) -> Self {
        Self {
            key: key(kinds::record(), &parent.namespace, &record_name(parent, number)),
            labels: json!({OWNER_UID: parent.uid}),
            owners: json!([parent.owner_reference()]),
            number,
            lines: lines_of(units).into(),
        }
    }

    /// The change of the stored one, as it was seen: one that comes late changes no newer one.
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
