//! The full-screen view of a followed object: reads keys and draws frames.
//!
//! A key draws a frame at once. A change draws at most ten frames per second. Otherwise one frame per second keeps the
//! shown times current.

use std::io::stdout;
use std::time::Duration;

use anyhow::Context as _;
use crossterm::SynchronizedUpdate as _;
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures::StreamExt as _;
use k8s_openapi::jiff::SignedDuration;
use oarlock_view::{Connection, Keypress, Moment, Reaction, Watched, WatchedScreen};
use ratatui::DefaultTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::follow::{FollowEvent, Followed, Follower};
use super::now;
use super::watch::Ended;

/// The shortest time between two frames without a key press.
const FRAME: Duration = Duration::from_millis(100);
/// The number of ticks after which a frame is drawn without a change.
const IDLE_TICKS: u32 = 10;

/// Restores the terminal when dropped, however the screen ends.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the object until it ends or the user leaves.
pub(super) async fn show<C: Followed>(follower: Follower<C>) -> anyhow::Result<Ended<C::View>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let terminal =
        ratatui::try_init().context("cannot use the terminal: `oarlock watch NAME -o text` prints lines instead")?;
    let _restored = Restored;
    let screen = WatchedScreen::begin(follower.view());
    let shown = Shown { follower, screen, lost: None };
    tokio::select! {
        ended = shown.run(terminal) => ended,
        _ = terminate.recv() => Ok(Ended::Left),
    }
}

struct Shown<C: Followed> {
    follower: Follower<C>,
    screen: <C::View as Watched>::Screen,
    /// The time and the cause of a lost connection.
    lost: Option<(Instant, String)>,
}

impl<C: Followed> Shown<C> {
    async fn run(mut self, mut terminal: DefaultTerminal) -> anyhow::Result<Ended<C::View>> {
        let mut keys = EventStream::new();
        let mut ticks = interval(FRAME);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut is_newer, mut idle) = (true, 0);
        loop {
            tokio::select! {
                event = keys.next() => {
                    let event = event.context("the terminal is gone")?.context("cannot read keys")?;
                    match self.react(&event) {
                        Some(Reaction::Leave) => return Ok(Ended::Left),
                        Some(Reaction::Redraw) => self.draw(&mut terminal)?,
                        None => {}
                    }
                }
                event = self.follower.next() => match event? {
                    FollowEvent::Changed => is_newer = true,
                    FollowEvent::Connected => self.lost = None,
                    // The time of the first failure stays, since the screen shows how long the connection is lost.
                    FollowEvent::Disconnected(cause) => {
                        let since = self.lost.take().map_or_else(Instant::now, |(since, _)| since);
                        self.lost = Some((since, cause));
                    }
                    FollowEvent::Gone => {
                        let view = self.follower.view();
                        return Ok(if view.has_ended() { Ended::Whole(view) } else { Ended::Gone(view) });
                    }
                },
                _ = ticks.tick() => {
                    idle += 1;
                    if std::mem::take(&mut is_newer) {
                        self.screen.renew(self.follower.view());
                        idle = IDLE_TICKS;
                    }
                    if self.screen.shown().has_ended() {
                        return Ok(Ended::Whole(self.follower.last_view().await));
                    }
                    if idle >= IDLE_TICKS {
                        idle = 0;
                        self.draw(&mut terminal)?;
                    }
                }
            }
        }
    }

    fn react(&mut self, event: &Event) -> Option<Reaction> {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => keypress(key).map(|key| self.screen.react(key)),
            Event::Resize(..) => Some(Reaction::Redraw),
            _ => None,
        }
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
        let connection = self.lost.as_ref().map_or(Connection::Reached, |(since, cause)| Connection::Lost {
            cause: cause.clone(),
            lasting: SignedDuration::try_from(since.elapsed()).unwrap_or_default(),
        });
        let moment = Moment { now: now(), connection };
        let screen = &mut self.screen;
        // A frame takes more than one write. The synchronized update makes the terminal show the frame as a whole.
        let drawn = stdout().sync_update(|_| terminal.draw(|frame| screen.draw(frame, &moment)).map(drop));
        drawn.flatten().context("cannot draw on the terminal")
    }
}

fn keypress(key: &KeyEvent) -> Option<Keypress> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return matches!(key.code, KeyCode::Char('c' | 'd')).then_some(Keypress::Leave);
    }
    Some(match key.code {
        KeyCode::Up | KeyCode::Char('k') => Keypress::Up,
        KeyCode::Down | KeyCode::Char('j') => Keypress::Down,
        KeyCode::PageUp => Keypress::PageUp,
        KeyCode::PageDown | KeyCode::Char(' ') => Keypress::PageDown,
        KeyCode::Home | KeyCode::Char('g') => Keypress::Home,
        KeyCode::End | KeyCode::Char('G') => Keypress::End,
        KeyCode::Char('f') => Keypress::Filter,
        KeyCode::Char('d') => Keypress::Drawing,
        KeyCode::Char('q') | KeyCode::Esc => Keypress::Leave,
        _ => return None,
    })
}
