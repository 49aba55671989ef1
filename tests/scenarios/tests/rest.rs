//! The REST API of OpsJobs as clients use it, in its own process, with the tokens of real ServiceAccounts. The cluster is in memory or a real control
//! plane.

#[path = "rest/agreement.rs"]
mod agreement;
#[path = "rest/alerts.rs"]
mod alerts;
#[path = "rest/bad_input.rs"]
mod bad_input;
#[path = "rest/buckets.rs"]
mod buckets;
#[path = "rest/calls.rs"]
mod calls;
#[path = "rest/crowds.rs"]
mod crowds;
#[path = "rest/exports.rs"]
mod exports;
#[path = "rest/foreign_client.rs"]
mod foreign_client;
#[path = "rest/history.rs"]
mod history;
#[path = "rest/logs.rs"]
mod logs;
#[path = "rest/pages.rs"]
mod pages;
#[path = "rest/quotas.rs"]
mod quotas;
#[cfg(test)]
#[path = "../../../host/registry/tests/support/server.rs"]
mod registry_server;
#[path = "rest/rights.rs"]
mod rights;
#[cfg(test)]
#[path = "../../../host/artefacts/tests/s3/server.rs"]
mod s3_server;
#[path = "rest/served.rs"]
mod served;
#[path = "rest/server.rs"]
mod server;
