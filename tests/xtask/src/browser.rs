//! The page about the API, in a headless browser.
//!
//! The module checks that the page shows its operations, and that it sends no request to another host. A page that
//! loads a script from another host shows nothing if that host is unreachable.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::python::{apt, runs};

const CHROMIUM: &str = "chromium";
/// Words that the page must show once its scripts have run.
const SHOWN: [&str; 7] =
    ["listOpsJobs", "createOpsJob", "getOpsJob", "stopOpsJob", "deleteOpsJob", "getArtifact", "/api/v1/opsjobs"];
/// With these options, the browser resolves no name and sends as few requests of its own as possible.
const OPTIONS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--virtual-time-budget=20000",
];
/// Time limit of the browser, in seconds.
const SECONDS: &str = "120";

/// Installs Chromium if it is missing and the machine has apt.
pub(crate) fn ensure() -> anyhow::Result<()> {
    if runs(Command::new(CHROMIUM).arg("--version")) { Ok(()) } else { apt(CHROMIUM) }
}

/// Opens the page, and checks its content and its requests.
pub(crate) fn open(url: &str, folder: &Path) -> anyhow::Result<()> {
    let (profile, net) = (folder.join("browser"), folder.join("browser-net.json"));
    // A new profile, so that the browser has no cache.
    let _ = std::fs::remove_dir_all(&profile);
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", SECONDS, CHROMIUM]).args(OPTIONS);
    command.arg(format!("--user-data-dir={}", profile.display())).arg(format!("--log-net-log={}", net.display()));
    command.arg("--dump-dom").arg(format!("{url}/docs/")).stdin(Stdio::null());
    let output = command.output().context("cannot run Chromium")?;
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    std::fs::write(folder.join("page.html"), &page).context("cannot write the page")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("Chromium ended with {}: {}", output.status, said.lines().last().unwrap_or_default());
    }
    let missing: Vec<&str> = SHOWN.into_iter().filter(|word| !page.contains(word)).collect();
    if !missing.is_empty() {
        bail!("the page does not show {}; it is in {}", missing.join(", "), folder.join("page.html").display());
    }
    let log = std::fs::read(&net).context("the browser left no log of its requests")?;
    let asked = asked(&serde_json::from_slice(&log).context("the log of requests is no JSON")?, url);
    let own = |asked: &&String| asked.strip_prefix(url).is_some_and(|path| path.starts_with('/'));
    if let Some(other) = asked.iter().find(|asked| !own(asked)) {
        bail!("the page asks another host: {other}");
    }
    if !asked.iter().any(|asked| asked.ends_with("/openapi.json")) {
        bail!("the log of requests lacks the one for openapi.json, so it proves nothing");
    }
    println!("the page shows all operations, and made {} requests, all to this API", asked.len());
    Ok(())
}

/// Returns the URLs that the page requested. Requests of the browser itself have no page as initiator.
fn asked(log: &Value, page: &str) -> Vec<String> {
    let start = log.pointer("/constants/logEventTypes/URL_REQUEST_START_JOB").and_then(Value::as_i64);
    let events = log.get("events").and_then(Value::as_array).into_iter().flatten();
    let of_page = events.filter(|event| {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str);
        start.is_some() && event.get("type").and_then(Value::as_i64) == start && text("/params/initiator") == Some(page)
    });
    of_page.filter_map(|event| event.pointer("/params/url").and_then(Value::as_str).map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_the_page_began_is_counted() {
        let page = "http://127.0.0.1:80";
        let event = |kind: i64, initiator: &str, url: &str| json!({"type": kind, "params": {"initiator": initiator, "url": url}});
        let log = json!({"constants": {"logEventTypes": {"URL_REQUEST_START_JOB": 2}}, "events": [
            event(2, page, "http://127.0.0.1:80/openapi.json"),
            event(2, page, "https://elsewhere.example/font.css"),
            event(2, "not an origin", "https://update.example/"),
            event(3, page, "http://127.0.0.1:80/docs/"),
            json!({"type": 2}),
        ]});
        assert_eq!(asked(&log, page), ["http://127.0.0.1:80/openapi.json", "https://elsewhere.example/font.css"]);
        assert!(asked(&json!({"events": [event(2, page, "x")]}), page).is_empty());
    }
}
