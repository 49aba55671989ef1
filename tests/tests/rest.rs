//! The REST API of OpsJobs as its clients meet it: a process of its own, on a cluster in memory and on a real control plane, and tokens of
//! real ServiceAccounts.

#[path = "rest/agreement.rs"]
mod agreement;
#[path = "rest/bad_input.rs"]
mod bad_input;
#[path = "rest/calls.rs"]
mod calls;
#[path = "rest/logs.rs"]
mod logs;
#[path = "rest/rights.rs"]
mod rights;
#[path = "rest/served.rs"]
mod served;
