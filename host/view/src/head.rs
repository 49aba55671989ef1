//! The head of a frame: the job, its bar, its rate, and what holds it back.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr as _;

use crate::job_view::JobView;
use crate::outlook::Outlook;
use crate::plain::{plugin, word};
use crate::screen::{Connection, Moment};
use crate::shown_progress::{ShownCounts, ShownProgress};
use crate::shown_text::{cut_end, cut_middle, escaped, wrapped};
use crate::span_text::{between, span};

/// The lines that every head has: title, bar, numbers, rate.
const LEAST: usize = 4;
/// Most lines of one sentence about what holds the job back.
const SENTENCE_LINES: usize = 2;

/// At most `room` lines of `width` columns.
pub(crate) fn head(job: &JobView, moment: &Moment, width: usize, room: usize) -> Vec<Line<'static>> {
    let color = match job.progress {
        ShownProgress::Succeeded => Style::new().fg(Color::Green),
        ShownProgress::Failed => Style::new().fg(Color::Red),
        _ => Style::new().fg(Color::Cyan),
    };
    let mut lines = vec![title(&job.title(), &word(job), color, width)];
    let mut told = Vec::new();
    if let Connection::Lost { cause, lasting } = &moment.connection {
        let text = format!("disconnected for {}, asking again: {cause}", span(*lasting));
        told.push((text, Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)));
    }
    told.extend(obstacles(job).into_iter().map(|text| (text, Style::new().fg(Color::Yellow))));
    if room > LEAST + told.len() {
        lines.push(Line::from(cut_end(&escaped(&about(job, moment)), width).into_owned()));
    }
    let parts = parts(&job.counts);
    lines.push(bar(&parts, job.counts.percent(), width));
    lines.push(numbers(&parts, width, "no targets"));
    lines.push(Line::from(cut_end(&pace(job, moment), width).into_owned()));
    lines.extend(said(told, width, room.saturating_sub(lines.len())));
    lines.truncate(room);
    lines
}

/// Sentences in at most `room` lines. Each has a line before one has two.
pub(crate) fn said(told: Vec<(String, Style)>, width: usize, room: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let mut left = told.len();
    for (text, style) in told {
        let free = room.saturating_sub(lines.len());
        left = left.saturating_sub(1);
        let most = free.saturating_sub(left).clamp(1, SENTENCE_LINES).min(free);
        lines.extend(wrapped(&escaped(&text), width, most).into_iter().map(|line| Line::styled(line, style)));
    }
    lines
}

/// The name at the left, the state at the right.
pub(crate) fn title(name: &str, state: &str, color: Style, width: usize) -> Line<'static> {
    let state = cut_end(&escaped(state), width / 2).into_owned();
    let room = width.saturating_sub(state.width() + 1);
    let name = escaped(name).into_owned();
    let name = cut_middle(&name, room).into_owned();
    let gap = " ".repeat(width.saturating_sub(name.width() + state.width()));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Line::from(vec![Span::styled(name, bold), Span::raw(gap), Span::styled(state, color.patch(bold))])
}

fn about(job: &JobView, moment: &Moment) -> String {
    let took = between(job.started, Some(job.ended.unwrap_or(moment.now)));
    let mut parts = vec![job.action.clone()];
    parts.extend(Some(plugin(job)).filter(|plugin| !plugin.is_empty()).map(|plugin| format!("by {plugin}")));
    parts.extend(took);
    parts.extend(job.bounds.iter().cloned());
    parts.join(", ")
}

/// A part of a bar: what it stands for, its sign, its word and its style. The signs tell them apart without colours.
pub(crate) type Part = (usize, &'static str, &'static str, Style);

fn parts(counts: &ShownCounts) -> [Part; 4] {
    [
        (counts.succeeded, "=", "succeeded", Style::new().fg(Color::Green)),
        (counts.failed, "!", "failed", Style::new().fg(Color::Red)),
        (counts.in_flight, ">", "in flight", Style::new().fg(Color::Cyan)),
        (counts.pending, ".", "pending", Style::new().add_modifier(Modifier::DIM)),
    ]
}

/// The bar of `width` columns, with its percent.
pub(crate) fn bar<const N: usize>(parts: &[Part; N], percent: usize, width: usize) -> Line<'static> {
    let percent = format!(" {percent:>3}%");
    let room = width.saturating_sub(percent.width() + 2);
    let lengths = shares(parts.map(|(count, ..)| count), room);
    let mut spans = vec![Span::raw("[")];
    spans.extend(
        parts.iter().zip(lengths).map(|((_, sign, _, style), length)| Span::styled(sign.repeat(length), *style)),
    );
    spans.extend([Span::raw("]"), Span::raw(percent)]);
    Line::from(spans)
}

/// `room` columns by number, at least one for each number that is not 0; all of it for the last one where all are.
fn shares<const N: usize>(counts: [usize; N], room: usize) -> [usize; N] {
    let total: usize = counts.iter().sum();
    let share = |count: usize| match total {
        0 => 0,
        _ if count == 0 => 0,
        _ => (count.saturating_mul(room) / total).max(1),
    };
    let mut lengths = counts.map(share);
    // The greatest part bears what rounding left over or took too much.
    let used: usize = lengths.iter().sum();
    let last = N.saturating_sub(1);
    let greatest = (0..N).max_by_key(|at| lengths.get(*at).copied()).filter(|_| total > 0).unwrap_or(last);
    if let Some(length) = lengths.get_mut(greatest) {
        *length = (*length + room).saturating_sub(used);
    }
    lengths
}

/// The numbers in words, or in signs where words do not fit; `none` where all are 0.
pub(crate) fn numbers(parts: &[Part], width: usize, none: &'static str) -> Line<'static> {
    let shown = parts.iter().filter(|(count, ..)| *count > 0);
    let long: Vec<(String, Style)> =
        shown.clone().map(|(count, sign, word, style)| (format!("{sign} {count} {word}"), *style)).collect();
    let short = shown.map(|(count, sign, _, style)| (format!("{sign}{count}"), *style));
    let fits = long.iter().map(|(text, _)| text.width() + 2).sum::<usize>() <= width + 2;
    let texts = if fits { long } else { short.collect() };
    if texts.is_empty() {
        return Line::from(none);
    }
    let spans = texts.into_iter().enumerate().flat_map(|(at, (text, style))| {
        let gap = if at == 0 { "" } else { "  " };
        [Span::raw(gap), Span::styled(text, style)]
    });
    Line::from(spans.collect::<Vec<_>>())
}

fn pace(job: &JobView, moment: &Moment) -> String {
    let sentence = Outlook::new(job, moment.now).sentence();
    if !sentence.is_empty() {
        return sentence;
    }
    match job.progress {
        progress if progress.is_terminal() => {
            between(job.started, job.ended).map_or_else(|| "ended".to_owned(), |took| format!("ended after {took}"))
        }
        ShownProgress::Pending => "nothing has started".to_owned(),
        _ if job.missing_detail().is_some() => "rate not known".to_owned(),
        _ => "no target ended in the last minute".to_owned(),
    }
}

/// What a person should read, the most general first.
fn obstacles(job: &JobView) -> Vec<String> {
    let waits = job.waits_for.as_ref().map(|word| match &job.waiting {
        Some(sentence) => format!("waits for {word}: {sentence}"),
        None => format!("waits for {word}"),
    });
    let notices = job.notices.iter().map(|notice| format!("{}: {}", notice.reason, notice.message));
    waits.into_iter().chain(notices).chain(job.missing_detail()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_that_is_not_empty_has_a_column_and_together_they_fill_the_bar() {
        assert_eq!(shares([9_998, 1, 1, 0], 30), [28, 1, 1, 0]);
        assert_eq!(shares([1, 1, 1, 9_997], 30), [1, 1, 1, 27]);
        assert_eq!(shares([0; 4], 30), [0, 0, 0, 30]);
        assert_eq!(shares([5, 0, 0, 0], 30), [30, 0, 0, 0]);
        for room in 4..200 {
            assert_eq!(shares([620, 3, 12, 365], room).iter().sum::<usize>(), room);
        }
    }
}
