//! Every alert fires in the trouble that it is for, and no alert fires on a healthy busy host. promtool says so, on series
//! that were scraped from running hosts. The alerts of the REST server are in the test binary `rest`.

#[path = "alerts/calm.rs"]
mod calm;
#[path = "alerts/coverage.rs"]
mod coverage;
#[path = "alerts/files.rs"]
mod files;
#[path = "alerts/processes.rs"]
mod processes;
#[path = "alerts/troubles.rs"]
mod troubles;
