//! The head of a frame: the job, its bar, its rate, and the reasons why it waits.

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

/// The number of lines that every head has: title, bar, numbers, rate.
const LEAST: usize = 4;
/// The most lines of one sentence about the reason why the job waits.
const SENTENCE_LINES: usize = 2;

/// Returns the head in at most `room` lines of `width` columns.
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
        told.push(Sentence { text, style: Style::new().fg(Color::Red).add_modifier(Modifier::BOLD) });
    }
    told.extend(obstacles(job).into_iter().map(|text| Sentence { text, style: Style::new().fg(Color::Yellow) }));
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

/// A sentence with its style.
pub(crate) struct Sentence {
    pub(crate) text: String,
    pub(crate) style: Style,
}

/// Returns sentences in at most `room` lines. Each sentence gets one line before any sentence gets two.
pub(crate) fn said(told: Vec<Sentence>, width: usize, room: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let mut left = told.len();
    for Sentence { text, style } in told {
        let free = room.saturating_sub(lines.len());
        left = left.saturating_sub(1);
        let most = free.saturating_sub(left).clamp(1, SENTENCE_LINES).min(free);
        lines.extend(wrapped(&escaped(&text), width, most).into_iter().map(|line| Line::styled(line, style)));
    }
    lines
}

/// Returns the title line, with the name at the left and the state at the right.
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

/// A part of a bar. The signs distinguish the parts without colours.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) count: usize,
    pub(crate) sign: &'static str,
    pub(crate) word: &'static str,
    pub(crate) style: Style,
}

fn parts(counts: &ShownCounts) -> [Part; 4] {
    [
        Part { count: counts.succeeded, sign: "=", word: "succeeded", style: Style::new().fg(Color::Green) },
        Part { count: counts.failed, sign: "!", word: "failed", style: Style::new().fg(Color::Red) },
        Part { count: counts.in_flight, sign: ">", word: "in flight", style: Style::new().fg(Color::Cyan) },
        Part { count: counts.pending, sign: ".", word: "pending", style: Style::new().add_modifier(Modifier::DIM) },
    ]
}

/// Returns the bar of `width` columns, with its percentage.
pub(crate) fn bar<const N: usize>(parts: &[Part; N], percent: usize, width: usize) -> Line<'static> {
    let percent = format!(" {percent:>3}%");
    let room = width.saturating_sub(percent.width() + 2);
    let lengths = shares(parts.map(|part| part.count), room);
    let mut spans = vec![Span::raw("[")];
    spans.extend(parts.iter().zip(lengths).map(|(part, length)| Span::styled(part.sign.repeat(length), part.style)));
    spans.extend([Span::raw("]"), Span::raw(percent)]);
    Line::from(spans)
}

/// Divides `room` columns of a bar by the counts. Each count that is not 0 gets at least one column. If all counts are 0, the last part
/// gets all columns.
pub fn shares<const N: usize>(counts: [usize; N], room: usize) -> [usize; N] {
    let total: usize = counts.iter().sum();
    let share = |count: usize| match total {
        0 => 0,
        _ if count == 0 => 0,
        _ => (count.saturating_mul(room) / total).max(1),
    };
    let mut lengths = counts.map(share);
    // The largest part absorbs the rounding difference.
    let used: usize = lengths.iter().sum();
    let last = N.saturating_sub(1);
    let greatest = (0..N).max_by_key(|at| lengths.get(*at).copied()).filter(|_| total > 0).unwrap_or(last);
    if let Some(length) = lengths.get_mut(greatest) {
        *length = (*length + room).saturating_sub(used);
    }
    lengths
}

/// Returns the numbers in words, or in signs if words do not fit. Returns `none` if all numbers are 0.
pub(crate) fn numbers(parts: &[Part], width: usize, none: &'static str) -> Line<'static> {
    let shown = parts.iter().filter(|part| part.count > 0);
    let long: Vec<(String, Style)> =
        shown.clone().map(|Part { count, sign, word, style }| (format!("{sign} {count} {word}"), *style)).collect();
    let short = shown.map(|Part { count, sign, style, .. }| (format!("{sign}{count}"), *style));
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

/// Returns the sentences that the user should read, the most general first.
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
