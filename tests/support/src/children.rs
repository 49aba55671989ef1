//! Child processes that never outlive the process that started them.
//!
//! A child writes its output to a log file. Dropping a child kills it by its own process id. On Linux the kernel also kills the
//! child if this process dies first, so a killed test run leaves nothing behind.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;

use anyhow::Context as _;

/// A running process and its log file.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    log: PathBuf,
}

impl Child {
    /// Starts `command` with its output in `log`.
    ///
    /// # Errors
    ///
    /// If the log cannot be created, or the program cannot be started.
    pub fn spawn(name: &str, mut command: Command, log: PathBuf) -> anyhow::Result<Self> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot create the log of {name} at {}", log.display()))?;
        let errors = output.try_clone().with_context(|| format!("cannot share the log of {name}"))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let process = on_keeper_thread(command).with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), process, log })
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the exit status if the process has ended.
    ///
    /// # Errors
    ///
    /// If the operating system cannot tell whether the process still runs.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.process.try_wait().with_context(|| format!("cannot ask whether {} still runs", self.name))
    }

    /// Kills the process with SIGKILL and waits for its end. A process that has already ended needs no signal.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Freezes the process at any point, like a machine that hangs. The process keeps its port and its connections.
    ///
    /// # Errors
    ///
    /// If the process has ended.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal(rustix::process::Signal::STOP)
    }

    /// Lets the process continue after [`Child::freeze`].
    ///
    /// # Errors
    ///
    /// If the process has ended.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal(rustix::process::Signal::CONT)
    }

    fn signal(&self, signal: rustix::process::Signal) -> anyhow::Result<()> {
        let id = i32::try_from(self.id()).ok().and_then(rustix::process::Pid::from_raw);
        let id = id.with_context(|| format!("{} has no process id", self.name))?;
        rustix::process::kill_process(id, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Returns the name that the process was started with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the last lines of the log.
    #[must_use]
    pub fn tail(&self, lines: usize) -> String {
        tail(&self.log, lines)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the last lines of a file, or the reason why the file cannot be read.
fn tail(path: &Path, lines: usize) -> String {
    match std::fs::read(path) {
        Ok(content) => {
            let text = String::from_utf8_lossy(&content);
            let all: Vec<&str> = text.lines().collect();
            all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
        }
        Err(cause) => format!("({} cannot be read: {cause})", path.display()),
    }
}

type Order = (Command, mpsc::Sender<std::io::Result<std::process::Child>>);

/// Starts a child on one thread that lives as long as the process. The kernel's death signal follows the *thread* that started a
/// child, and a test's own thread ends with the test.
fn on_keeper_thread(command: Command) -> anyhow::Result<std::process::Child> {
    static KEEPER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (command, reply) in inbox {
                let _ = reply.send(spawn_bound(command));
            }
        });
        orders
    });
    let (reply, answer) = mpsc::channel();
    keeper.send((command, reply)).context("the thread that starts processes has ended")?;
    Ok(answer.recv().context("the thread that starts processes has ended")??)
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "pre_exec is unsafe; the closure makes one system call, which is async-signal-safe")]
fn spawn_bound(mut command: Command) -> std::io::Result<std::process::Child> {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: between fork and exec the closure allocates nothing, takes no lock and calls prctl(2) alone.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(Into::into)
        });
    }
    command.spawn()
}

#[cfg(not(target_os = "linux"))]
fn spawn_bound(mut command: Command) -> std::io::Result<std::process::Child> {
    command.spawn()
}
