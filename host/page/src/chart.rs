//! The chart of a job's progress: how many targets had started, ended and failed at each time.
//!
//! The chart of a job that has not ended goes on until the time of the caller, so that it shows how long nothing has happened.

use std::fmt::Write as _;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use oarlock_view::{JobView, ShownProgress, between};

use crate::text_html::point;

/// The number of steps of a curve, and the height of the drawing.
const STEPS: usize = 120;
const HEIGHT: usize = 100;

/// The shortest time that a chart shows.
const SHORTEST: SignedDuration = SignedDuration::from_secs(2);

/// The numbers of targets at each step.
struct Curves {
    from: Timestamp,
    until: Timestamp,
    /// The targets that had started and those that had ended, and how many of these had failed.
    points: Vec<Sums>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    started: usize,
    ended: usize,
    failed: usize,
}

/// Returns the section with the chart, or with a sentence if there is nothing to draw. The section is a fragment with the id `progress`.
pub(crate) fn section(job: &JobView, now: Timestamp) -> Markup {
    let curves = Curves::new(job, now);
    let is_known = curves.is_some();
    let curves = curves.filter(|curves| curves.until.duration_since(curves.from) >= SHORTEST);
    html! {
        section id="progress" class="panel" aria-labelledby="progress-title" {
            h2 id="progress-title" { "Progress over time" }
            @match curves {
                Some(curves) => (curves.figure(job.targets().len())),
                None => p class="muted" {
                    @match job.missing_detail() {
                        Some(sentence) => { (sentence) "." },
                        None if is_known && job.progress.is_terminal() => "All targets took less than two seconds.",
                        None if is_known => "The first target has just started.",
                        None if job.counts.ended() > 0 || job.counts.in_flight > 0 => "The times of the targets are not known.",
                        None if job.progress.is_terminal() => "The job ended before a target started.",
                        None => "No target has started.",
                    }
                },
            }
        }
    }
}

impl Curves {
    fn new(job: &JobView, now: Timestamp) -> Option<Self> {
        let starts = job.targets().iter().filter_map(|target| target.started);
        let ends = job.targets().iter().filter_map(|target| target.ended);
        let from = starts.clone().min()?.min(job.started.unwrap_or(Timestamp::MAX));
        let last = starts.chain(ends).max()?;
        let until = if job.progress.is_terminal() { last } else { last.max(now) };
        let mut points = vec![Sums::default(); STEPS + 1];
        for target in job.targets() {
            let place = |time: Option<Timestamp>| Some(step(from, until, time?));
            if let Some(point) = place(target.started).and_then(|at| points.get_mut(at)) {
                point.started += 1;
            }
            if let Some(point) = place(target.ended).and_then(|at| points.get_mut(at)) {
                point.ended += 1;
                point.failed += usize::from(target.progress == ShownProgress::Failed);
            }
        }
        let mut sums = Sums::default();
        for point in &mut points {
            let Sums { started, ended, failed } = *point;
            sums = Sums { started: sums.started + started, ended: sums.ended + ended, failed: sums.failed + failed };
            *point = sums;
        }
        Some(Self { from, until, points })
    }

    fn figure(&self, total: usize) -> Markup {
        let last = self.points.last().copied().unwrap_or_default();
        let took = between(Some(self.from), Some(self.until)).unwrap_or_default();
        let sentence = format!(
            "In {took}, {} of {total} targets started and {} ended, {} of them failed.",
            last.started, last.ended, last.failed
        );
        html! {
            figure class="chart" {
                div class="plot" {
                    svg viewBox={ "0 0 " (STEPS) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(sentence) {
                        path class="c-ended" d=(self.area(total, |sums| sums.ended)) {}
                        path class="c-failed" d=(self.area(total, |sums| sums.failed)) {}
                        path class="c-started" d=(self.outline(total, |sums| sums.started)) {}
                    }
                    span class="most" { (total) }
                    span class="least" { "0" }
                }
                div class="axis" { span { (point(self.from)) } span { (point(self.until)) " UTC" } }
                figcaption {
                    span class="key k-line" { "started " (last.started) }
                    span class="key k-area" { "ended " (last.ended) }
                    span class="key k-bad" { "failed " (last.failed) }
                }
            }
        }
    }

    /// Returns the outline of a curve as steps: `M`, then one `H` and `V` for each change.
    fn outline(&self, total: usize, value: fn(&Sums) -> usize) -> String {
        let height = |sums: &Sums| HEIGHT.saturating_sub((value(sums) * HEIGHT).checked_div(total).unwrap_or(0));
        let mut path = format!("M0 {HEIGHT}");
        let mut before = HEIGHT;
        for (at, sums) in self.points.iter().enumerate() {
            let now = height(sums);
            if now != before {
                let _always = write!(path, "H{at}V{now}");
                before = now;
            }
        }
        path + &format!("H{STEPS}")
    }

    fn area(&self, total: usize, value: fn(&Sums) -> usize) -> String {
        self.outline(total, value) + &format!("V{HEIGHT}Z")
    }
}

/// Returns the step of a time, from 0 to [`STEPS`].
fn step(from: Timestamp, until: Timestamp, time: Timestamp) -> usize {
    let seconds = |to: Timestamp| u64::try_from(to.duration_since(from).as_secs()).unwrap_or(0);
    let whole = seconds(until);
    let at = seconds(time).saturating_mul(STEPS as u64).checked_div(whole).unwrap_or(STEPS as u64);
    usize::try_from(at).unwrap_or(STEPS).min(STEPS)
}
