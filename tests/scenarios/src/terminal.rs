//! A program in a terminal: a pseudo-terminal of the kernel, and an emulator that shows what a person would see.

use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use pty_process::blocking::{Command, Pty};

/// The lines that the emulator keeps above the screen.
const SCROLLBACK: usize = 1000;
/// The time between two looks at the screen.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The private mode in which a terminal shows nothing new. A program sets it while the program draws a frame.
const SYNCHRONIZED_UPDATE: &[&[u16]] = &[&[2026]];

/// A terminal and its program. The program ends when this value is dropped.
pub struct Terminal {
    pty: Arc<Pty>,
    child: Child,
    emulator: Arc<Mutex<vt100::Parser<Frames>>>,
}

/// Keeps the previous screen while a program draws a frame.
#[derive(Default)]
struct Frames {
    before: Option<String>,
}

impl vt100::Callbacks for Frames {
    fn unhandled_csi(
        &mut self,
        screen: &mut vt100::Screen,
        first: Option<u8>,
        _second: Option<u8>,
        parameters: &[&[u16]],
        command: char,
    ) {
        if first == Some(b'?') && parameters == SYNCHRONIZED_UPDATE {
            self.before = (command == 'h').then(|| screen.contents());
        }
    }
}

impl Terminal {
    /// Starts a program in a terminal of this many columns and lines.
    ///
    /// # Errors
    ///
    /// Fails if there is no pseudo-terminal, or if the program cannot be started.
    pub fn start(command: Command, (columns, lines): (u16, u16)) -> anyhow::Result<Self> {
        let (pty, inside) = pty_process::blocking::open().context("there is no pseudo-terminal")?;
        pty.resize(pty_process::Size::new(lines, columns)).context("cannot set the size of the terminal")?;
        let child = command.spawn(inside).context("cannot start a program in a terminal")?;
        let frames = Frames::default();
        let emulator = vt100::Parser::new_with_callbacks(sized(lines)?, sized(columns)?, SCROLLBACK, frames);
        let (pty, emulator) = (Arc::new(pty), Arc::new(Mutex::new(emulator)));
        let (from, to) = (pty.clone(), emulator.clone());
        // The read fails once the program has ended, so the thread ends too.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = (&*from).read(&mut bytes) {
                to.lock().process(bytes.get(..count).unwrap_or_default());
            }
        });
        Ok(Self { pty, child, emulator })
    }

    /// Returns the lines that a person sees.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let emulator = self.emulator.lock();
        let shown = emulator.callbacks().before.clone().unwrap_or_else(|| emulator.screen().contents());
        shown.lines().map(str::to_owned).collect()
    }

    /// Returns true while the program uses the whole screen.
    #[must_use]
    pub fn is_full_screen(&self) -> bool {
        self.emulator.lock().screen().alternate_screen()
    }

    /// Types `keys`.
    ///
    /// # Errors
    ///
    /// Fails if the program has ended.
    pub fn press(&self, keys: &str) -> anyhow::Result<()> {
        (&*self.pty).write_all(keys.as_bytes()).with_context(|| format!("cannot type {keys:?}"))
    }

    /// Changes the size of the terminal, as a person does who drags its corner.
    ///
    /// # Errors
    ///
    /// Fails if the program has ended.
    pub fn resize(&self, (columns, lines): (u16, u16)) -> anyhow::Result<()> {
        self.emulator.lock().screen_mut().set_size(sized(lines)?, sized(columns)?);
        self.pty.resize(pty_process::Size::new(lines, columns)).context("cannot set the size of the terminal")
    }

    /// Waits until `wanted` accepts the screen, and returns its lines.
    ///
    /// # Errors
    ///
    /// Fails with the content of the screen if the wait takes longer than `within`.
    pub async fn until(
        &self,
        what: &str,
        within: Duration,
        wanted: impl Fn(&[String]) -> bool,
    ) -> anyhow::Result<Vec<String>> {
        let deadline = Instant::now() + within;
        loop {
            let lines = self.lines();
            if wanted(&lines) {
                return Ok(lines);
            }
            if Instant::now() > deadline {
                bail!("not on the screen after {within:?}: {what}\n{}", lines.join("\n"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the program has ended, and returns its exit status.
    ///
    /// # Errors
    ///
    /// Fails with the content of the screen if the program runs longer than `within`.
    pub async fn ended(&mut self, within: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().context("cannot ask whether the program still runs")? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("the program goes on after {within:?}:\n{}", self.lines().join("\n"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn sized(number: u16) -> anyhow::Result<NonZeroU16> {
    NonZeroU16::new(number).context("a terminal has at least one column and one line")
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn half_a_frame_is_not_seen() -> anyhow::Result<()> {
        let frame = r"printf '\033[?2026hhalf'; read -r go; printf ' and whole\033[?2026l'; read -r end";
        let terminal = Terminal::start(Command::new("sh").args(["-c", &format!("printf before; {frame}")]), (80, 24))?;
        let within = Duration::from_secs(30);
        let deadline = Instant::now() + within;
        while !terminal.emulator.lock().screen().contents().contains("half") {
            anyhow::ensure!(Instant::now() < deadline, "nothing was drawn");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        anyhow::ensure!(terminal.lines() == ["before"], "{:?}", terminal.lines());
        terminal.press("\n")?;
        terminal.until("the frame", within, |lines| lines[0].starts_with("beforehalf")).await?;
        Ok(())
    }
}
