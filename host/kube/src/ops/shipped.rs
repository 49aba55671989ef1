//! The admission policies of OpsJobs that this version ships.

use std::sync::LazyLock;

use serde_json::Value;

static SHIPPED: LazyLock<Vec<Value>> =
    LazyLock::new(|| serde_saphyr::from_multiple(oarlock_api::OPS_ADMISSION).unwrap_or_default());

/// Returns the shipped admission policies and their bindings.
pub fn shipped_policies() -> &'static [Value] {
    &SHIPPED
}
