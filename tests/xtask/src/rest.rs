//! Tests the REST API with cases from its OpenAPI document, and opens its page and the pages of jobs in a browser.
//!
//! The machine needs Python, and Chromium as a Debian package. The exit code is the outcome. All servers listen only on
//! this machine, and the tested host has a cluster in memory.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::browser;
use crate::languages;
use crate::phases::Phases;
use crate::plugins;
use crate::python;
use crate::workspace::{binary, cargo_on_all, components_folder, root, succeed, target_folder};

/// Time limit for the host to become ready.
const START: Duration = Duration::from_secs(120);
/// Smallest number of cases. With fewer cases, a part of the API is not tested.
const FEWEST: u32 = 8_000;
/// A rate limit that no test reaches.
const RATE: &str = "1000000";
/// Longest line that is shown. The log has the rest of each body.
const SHOWN: usize = 1_000;

/// The command `cargo xtask test rest`.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let phases = Phases::default();
    let (mut found, mut driver) = (None, None);
    let prepared = phases.run("target wasm32-wasip2", plugins::ensure_target)
        && phases.run("components", plugins::compile)
        && phases.run("the host", || succeed(&mut cargo_on_all("build", &["--bins"])))
        && phases.run("schemathesis", || {
            found = Some(python::with(&root().join("tests/search/fuzz/requirements.txt"))?);
            Ok(())
        })
        && phases.run("Chromium", browser::ensure)
        && phases.run("Playwright", || {
            driver = Some(python::with(&root().join("tests/browser/requirements.txt"))?);
            Ok(())
        });
    match found.zip(driver).filter(|_| prepared) {
        Some((python, driver)) => {
            play(&phases, &python);
            phases.run("the pages of jobs in a browser", || pages(&driver));
            languages::test(&phases);
        }
        None => phases.not_run("the REST API", "what it needs is missing"),
    }
    Ok(phases.close())
}

fn play(phases: &Phases, python: &Path) {
    let folder = target_folder().join("fuzz");
    let mut started = None;
    let is_there = phases.run("a host with its REST API", || {
        started = Some(Host::start(&folder)?);
        Ok(())
    });
    match started.filter(|_| is_there) {
        Some(mut host) => {
            phases.run("cases from the OpenAPI document", || fuzz(&host, python, &folder));
            phases.run("the page in a browser", || browser::open(&host.url, &folder));
            phases.run("the host has not panicked", || host.check());
        }
        None => phases.not_run("cases from the OpenAPI document", "the host did not start"),
    }
}

/// Runs the tests of the pages of jobs, on a host and on sample pages.
fn pages(python: &Path) -> anyhow::Result<()> {
    succeed(&mut cargo_on_all("build", &["--example", "samples"]))?;
    let mut command = Command::new(python);
    command.arg(root().join("tests/browser/pages.py")).arg(binary("debug", "oarlock")).arg(components_folder());
    command.arg(binary("debug/examples", "samples"));
    succeed(command.env("PYTHONDONTWRITEBYTECODE", "1").env("NO_PROXY", "127.0.0.1"))
}

/// A host with a cluster in memory. The host ends when this value is dropped.
struct Host {
    process: Child,
    url: String,
    token: String,
    log: PathBuf,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Host {
    fn start(folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let [told, log, token, config] = ["host.out", "host.log", "token", "kubeconfig"].map(|name| folder.join(name));
        // A token file of an earlier host is not valid for this host.
        let _ = std::fs::remove_file(&token);
        let create = |path: &Path| File::create(path).with_context(|| format!("cannot create {}", path.display()));
        let mut command = Command::new(binary("debug", "oarlock"));
        command.current_dir(folder).args(["dev", "--grant-all", "--rest", "127.0.0.1:0"]);
        command.args(["--read-rate", RATE, "--write-rate", RATE]);
        command.arg("--plugins").arg(components_folder()).arg("--kubeconfig-out").arg(config);
        command.arg("--rest-token-out").arg(&token);
        command.stdin(Stdio::null()).stdout(create(&told)?).stderr(create(&log)?);
        let process = command.spawn().context("cannot run the host")?;
        let mut host = Self { process, url: String::new(), token: String::new(), log };
        let began = Instant::now();
        while began.elapsed() < START {
            if let Some(status) = host.process.try_wait().context("cannot ask for the host")? {
                bail!("the host ended with {status}; what it said is in {}", host.log.display());
            }
            let said = std::fs::read_to_string(&told).unwrap_or_default();
            if let Some(url) = address(&said)
                && is_ready(url)
            {
                url.clone_into(&mut host.url);
                std::fs::read_to_string(&token).context("there is no token")?.trim().clone_into(&mut host.token);
                return Ok(host);
            }
            #[expect(clippy::disallowed_methods, reason = "another process is waited for, which tells nobody")]
            sleep(Duration::from_millis(100));
        }
        bail!("the host was not ready within {} s; what it said is in {}", START.as_secs(), host.log.display())
    }

    /// Returns an error if the host has ended or panicked. A host that answers after a panic has lost a request.
    fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.try_wait().context("cannot ask for the host")? {
            bail!("the host ended with {status}; what it said is in {}", self.log.display());
        }
        let said = String::from_utf8_lossy(&std::fs::read(&self.log).context("the host has no log")?).into_owned();
        match said.lines().find(|line| line.contains("panicked at")) {
            Some(line) => bail!("{}; the rest is in {}", cut(line), self.log.display()),
            None => Ok(()),
        }
    }
}

/// Returns the address of the API from the host's output.
fn address(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("OARLOCK_SERVER=")?;
    // Without whitespace behind it, the address may still be incomplete.
    rest.find(char::is_whitespace).and_then(|end| rest.get(..end))
}

fn is_ready(url: &str) -> bool {
    let host = url.trim_start_matches("http://");
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(host)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

fn fuzz(host: &Host, python: &Path, folder: &Path) -> anyhow::Result<()> {
    let log = folder.join("schemathesis.log");
    let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let errors = output.try_clone().context("cannot share the log")?;
    let own = root().join("tests/search/fuzz");
    let mut command = Command::new(python);
    command.current_dir(folder).args(["-m", "schemathesis.cli", "--config-file"]).arg(own.join("schemathesis.toml"));
    command.arg("run").arg(format!("{}/openapi.json", host.url)).arg("--no-color");
    command.env("PYTHONPATH", &own).env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONHASHSEED", "0");
    command.env("OARLOCK_FUZZ_TOKEN", &host.token).env("NO_PROXY", "127.0.0.1");
    let status = command.stdin(Stdio::null()).stdout(output).stderr(errors).status().context("cannot run Python")?;
    let said = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    let summary = said.lines().skip_while(|line| status.success() && !line.contains(" SUMMARY "));
    println!("{}", summary.map(cut).collect::<Vec<_>>().join("\n"));
    if !status.success() {
        bail!("schemathesis found something, and ended with {status}; all of it is in {}", log.display());
    }
    match cases(&said) {
        Some(count) if count >= FEWEST => Ok(()),
        count => bail!("{} cases, and there should be {FEWEST}", count.unwrap_or(0)),
    }
}

/// Returns the number of generated cases from the summary.
fn cases(said: &str) -> Option<u32> {
    let line = said.lines().rev().find(|line| line.contains(" generated"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn cut(line: &str) -> String {
    line.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_taken_once_it_is_whole() {
        assert_eq!(address("  export OARLOCK_SERVER=http://127.0.0.1:80 A=b\n"), Some("http://127.0.0.1:80"));
        assert_eq!(address("  export OARLOCK_SERVER=http://127.0.0.1:8"), None);
        assert_eq!(address("Plugins: none"), None);
    }

    #[test]
    fn cases_are_those_of_the_summary() {
        assert_eq!(cases("Test cases:\n  7914 generated, 7904 passed, 10 skipped\n\nSeed: 1\n"), Some(7_914));
        assert_eq!(cases("nothing"), None);
    }
}
