//! Alerts in scenarios: scrapes of running hosts become series, and promtool says which alerts fire.
//!
//! A scene scrapes a host in memory once a minute of paused time. A test with processes scrapes a few times, and stretches
//! the series.

pub mod processes;
pub mod promtool;
pub mod scene;
pub mod timeline;
