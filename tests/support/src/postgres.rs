//! A real PostgreSQL from the machine's packages.
//!
//! The server listens on the loopback interface, with an empty database and a password, in its own folder. Dropping it ends the
//! server. PostgreSQL refuses to run as root, so under root the programs run as the user of the package.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::fs::{Gid, Uid, chown};

use crate::children::Child;
use crate::workplace::{Workplace, free_port};

/// The password of the server. Tests check that no output contains this password.
pub const PASSWORD: &str = "history-password-of-tests";
/// How long the server may take until it answers.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A running server. Dropping it ends its processes.
#[derive(Debug)]
pub struct Postgres {
    process: Option<Child>,
    programs: PathBuf,
    port: u16,
    place: Workplace,
}

impl Postgres {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// If the package is missing, or the server does not become ready. The message then has the end of its log.
    pub fn start() -> anyhow::Result<Self> {
        let programs = controlplane::postgres()?;
        let mut server = Self { process: None, programs, port: free_port()?, place: Workplace::new()? };
        server.place.write("password", PASSWORD)?;
        let data = server.data();
        std::fs::create_dir(&data).with_context(|| format!("cannot create {}", data.display()))?;
        if let Some((user, group)) = package_user() {
            for path in [server.place.path(), &data] {
                chown(path, Some(user), Some(group)).with_context(|| format!("cannot give {} away", path.display()))?;
            }
        }
        let mut init = server.command("initdb");
        init.arg("-D").arg(&data).args(["-U", "oarlock"]).args(controlplane::INITDB);
        init.arg(format!("--pwfile={}", server.place.path().join("password").display()));
        let said = init.output().context("cannot run initdb")?;
        if !said.status.success() {
            bail!("initdb ended with {}: {}", said.status, String::from_utf8_lossy(&said.stderr));
        }
        server.run()?;
        Ok(server)
    }

    /// Returns the URL of the first database, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Creates an empty database and returns its URL, with the password.
    ///
    /// # Errors
    /// If PostgreSQL does not create the database.
    pub fn database(&self) -> anyhow::Result<String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("of_test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql(&format!("CREATE DATABASE {name}"))?;
        Ok(self.url_of(&name))
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://oarlock:{PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    fn psql(&self, statement: &str) -> Command {
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["-At", "-d", &self.url(), "-c", statement]);
        command
    }

    /// Runs SQL in the background until the returned child is dropped.
    ///
    /// # Errors
    /// If psql cannot be started.
    pub fn sql_in_background(&self, statement: &str) -> anyhow::Result<Child> {
        Child::spawn("psql", self.psql(statement), self.place.path().join("psql.log"))
    }

    /// Runs a SQL statement repeatedly until it returns the wanted text.
    ///
    /// # Errors
    /// If the statement fails, or does not return the wanted text in time. The error has the last result.
    pub fn until(&self, statement: &str, wanted: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let said = self.sql(statement)?;
            if said == wanted {
                return Ok(());
            }
            if began.elapsed() > READY_WITHIN {
                bail!("{statement}: {said}");
            }
            pause();
        }
    }

    /// Runs SQL as the owner of the database, and returns the output.
    ///
    /// # Errors
    /// If PostgreSQL refuses the statement.
    pub fn sql(&self, statement: &str) -> anyhow::Result<String> {
        let output = self.psql(statement).output().context("cannot run psql")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Kills the server, like a crash. Every write that it has acknowledged is there when it runs again.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops the server for a moment and copies its data over the earlier copy.
    ///
    /// # Errors
    /// If the files cannot be copied, or [`Postgres::run`] fails.
    pub fn back_up(&mut self) -> anyhow::Result<()> {
        self.kill();
        copy(&self.data(), &self.backup())?;
        self.run()
    }

    /// Kills the server and starts it with the data of the last copy.
    ///
    /// # Errors
    /// If the files cannot be copied, or [`Postgres::run`] fails.
    pub fn restore(&mut self) -> anyhow::Result<()> {
        self.kill();
        copy(&self.backup(), &self.data())?;
        self.run()
    }

    /// Starts the server again, on the same port and data.
    ///
    /// # Errors
    /// If the server does not become ready. The message has the end of its log.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut process = self.spawn()?;
        while began.elapsed() < READY_WITHIN {
            if self.sql("SELECT 1").is_ok() {
                self.process = Some(process);
                return Ok(());
            }
            // After a crash, the processes of the previous server may hold its shared memory for a moment.
            if process.ended()?.is_some() {
                process = self.spawn()?;
            }
            pause();
        }
        bail!("PostgreSQL was not ready within {} s:\n{}", READY_WITHIN.as_secs(), process.tail(20))
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        // Acknowledged writes survive the processes but not the machine. That is enough for tests.
        command.args([
            "-c",
            "fsync=off",
            "-c",
            "unix_socket_directories=",
            "-c",
            "max_connections=50",
            "-c",
            "shared_buffers=64MB",
        ]);
        Child::spawn("postgres", command, self.place.path().join("postgres.log"))
    }

    fn data(&self) -> PathBuf {
        self.place.path().join("postgres")
    }

    fn backup(&self) -> PathBuf {
        self.place.path().join("backup")
    }

    /// Returns a command for one of the PostgreSQL programs, under a user that may run it.
    fn command(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        if package_user().is_none() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        // Changing the user clears the parent-death signal, so setpriv must set it again.
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL"]).arg(program);
        command
    }
}

/// Copies a folder with the owners of its files, and replaces an existing target.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    let copied = Command::new("cp").arg("--archive").args([from, to]).status().context("cannot run cp")?;
    ensure!(copied.success(), "cp ended with {copied}");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "another process is waited for, which tells nobody")]
fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

/// Returns the user and group of the package, if this process is root.
fn package_user() -> Option<(Uid, Gid)> {
    rustix::process::getuid().is_root().then(|| {
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let line = users.lines().find_map(|line| line.strip_prefix("postgres:"))?.to_owned();
        let mut numbers = line.split(':').skip(1).map(|field| field.parse::<u32>().ok());
        Some((Uid::from_raw(numbers.next()??), Gid::from_raw(numbers.next()??)))
    })?
}
