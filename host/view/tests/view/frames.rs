//! Frames of jobs on a terminal, cell by cell.

use k8s_openapi::jiff::SignedDuration;
use oarlock_view::{Connection, Filter, JobScreen, JobView, Keypress, Moment, Reaction, draw};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

use crate::jobs::{at, large, large_without_records, small, view};

fn moment() -> Moment {
    Moment { now: at("10:02:00"), connection: Connection::Reached }
}

/// Returns the lines of a frame without trailing spaces.
fn frame(screen: &mut JobScreen, (width, height): (u16, u16), moment: &Moment) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen, moment)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn shown(job: JobView, size: (u16, u16)) -> String {
    frame(&mut JobScreen::new(job), size, &moment()).join("\n")
}

#[test]
fn a_job_in_flight_shows_its_head_and_first_what_needs_eyes() {
    let expected = "\
team-a/web                                                            Processing
Replace, by replace 0.1.0, 2m, partition 5, parallelism 2
[============!!!!!!!!!!!!!!!!!!!!!!!!>>>>>>>>>>>>>>>>>>>>>>>>>............]  50%
= 1 succeeded  ! 2 failed  > 2 in flight  . 1 pending
3.0/min, about 40s left to the partition
waits for Budget web: 2 targets are in flight, and disruption budget web allows
no eviction now
TARGET STATE     FOR
d      Blocked   1m     EvictionBlocked: disruption budget web allows no evicti…
c      In flight 30s    new pod c2
b      Failed    20s    PodNotFound: pod b is gone
e      Failed    10s    attempt 2; Boom: \\u{1b}[31mred
f      Pending
a      Succeeded 10s    new pod a2


--------------------------------------------------------------------------------
d Blocked: EvictionBlocked: disruption budget web allows no eviction now

all 1-6 of 6 | f filter | q leave | arrows PgUp PgDn Home End scroll";
    assert_eq!(shown(view(&small()), (80, 20)), expected);
}

#[test]
fn the_smallest_terminal_shows_the_numbers_what_holds_the_job_back_and_three_targets() {
    let expected = "\
team-a/web                    Processing
[=====!!!!!!!!!!!>>>>>>>>>>>>.....]  50%
=1  !2  >2  .1
3.0/min, about 40s left to the partition
waits for Budget web: 2 targets are in …
TARGET STATE
d      Blocked   EvictionBlocked: disru…
c      In flight new pod c2
b      Failed    PodNotFound: pod b is …
all 1-3 of 6 | f filter | q leave";
    assert_eq!(shown(view(&small()), (40, 10)), expected);
}

#[test]
fn ten_thousand_targets_scroll_page_by_page_and_the_chosen_row_stays_in_sight() {
    let (job, records) = large();
    let mut screen = JobScreen::new(JobView::new(&job, &records));
    let place = |screen: &mut JobScreen| frame(screen, (80, 20), &moment()).pop().unwrap();
    assert!(place(&mut screen).starts_with("all 1-10 of 10000 | "), "{}", place(&mut screen));
    let press = |screen: &mut JobScreen, keys: &[Keypress]| {
        for key in keys {
            assert_eq!(screen.press(*key), Reaction::Redraw);
        }
        place(screen)
    };
    let steps: [(&[Keypress], &str); 6] = [
        (&[Keypress::Down; 9], "all 1-10 of 10000"),
        (&[Keypress::Down], "all 2-11 of 10000"),
        (&[Keypress::PageDown], "all 12-21 of 10000"),
        (&[Keypress::End, Keypress::Down], "all 9991-10000 of 10000"),
        (&[Keypress::PageUp, Keypress::Up], "all 9989-9998 of 10000"),
        (&[Keypress::Home, Keypress::Up], "all 1-10 of 10000"),
    ];
    for (keys, expected) in steps {
        let place = press(&mut screen, keys);
        assert!(place.starts_with(expected), "{keys:?}: {place}, not {expected}");
    }
    assert_eq!(screen.press(Keypress::Leave), Reaction::Leave);
}

#[test]
fn the_filter_goes_round_and_each_one_counts_its_targets() {
    let (job, records) = large();
    let mut screen = JobScreen::new(JobView::new(&job, &records));
    let mut seen = Vec::new();
    for _ in 0..6 {
        let lines = frame(&mut screen, (80, 20), &moment());
        seen.push(lines.last().unwrap().split(" | ").next().unwrap().to_owned());
        screen.press(Keypress::Filter);
    }
    assert_eq!(
        seen,
        [
            "all 1-10 of 10000",
            "needs eyes 1-10 of 300",
            "in flight 1-10 of 200",
            "failed 1-10 of 100",
            "pending 1-10 of 4700",
            "succeeded 1-10 of 5000"
        ]
    );
    assert_eq!(screen.filter(), Filter::All);
}

#[test]
fn a_newer_view_keeps_the_filter_and_the_place_as_far_as_there_are_rows() {
    let (job, records) = large();
    let mut screen = JobScreen::new(JobView::new(&job, &records));
    screen.press(Keypress::Filter);
    screen.press(Keypress::End);
    screen.update(view(&small()));
    let lines = frame(&mut screen, (80, 20), &moment());
    assert!(lines.last().unwrap().starts_with("needs eyes 1-4 of 4"), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("e Failed: attempt 2")), "the last one is chosen: {lines:#?}");
}

#[test]
fn a_lost_connection_is_said_with_its_cause_before_what_holds_the_job_back() {
    let lost = Connection::Lost { cause: "connection refused".into(), lasting: SignedDuration::from_secs(75) };
    let moment = Moment { now: at("10:02:00"), connection: lost };
    for size in [(60, 10), (60, 24)] {
        let lines = frame(&mut JobScreen::new(view(&small())), size, &moment);
        let at = lines.iter().position(|line| line.starts_with("disconnected for 1m15s, asking again: connection ref"));
        let waits = lines.iter().position(|line| line.starts_with("waits for Budget web"));
        assert!(at.is_some() && (waits.is_none() || at < waits), "{lines:#?}");
    }
}

#[test]
fn a_frame_of_any_size_is_drawn_and_from_forty_columns_and_ten_lines_on_it_has_numbers_targets_and_hints() {
    let mut odd = small();
    odd["status"]["targetDetails"][2]["name"] = json!("漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字");
    odd["status"]["waitsFor"] = json!("word ".repeat(100));
    for job in [view(&small()), view(&odd), view(&json!({})), JobView::new(&large_without_records(), &[])] {
        let mut screen = JobScreen::new(job);
        for width in (1..8).chain([39, 40, 41, 59, 60, 80, 300]) {
            for height in (1..20).chain([60, 200]) {
                let lines = frame(&mut screen, (width, height), &moment());
                if width >= 40 && height >= 10 {
                    assert!(lines.iter().any(|line| line.ends_with('%')), "{width}x{height}: {lines:#?}");
                    assert!(lines.iter().any(|line| line.starts_with("TARGET")), "{width}x{height}: {lines:#?}");
                    assert!(lines.last().unwrap().contains("q leave"), "{width}x{height}: {lines:#?}");
                }
            }
        }
    }
}

#[test]
fn a_job_that_ended_says_how_long_it_took_and_one_without_status_that_nothing_has_started() {
    let mut ended = small();
    ended["status"]["progress"] = json!("Failed");
    ended["status"]["endTime"] = json!("2026-07-01T10:01:30Z");
    ended["status"]["waitsFor"] = json!(null);
    ended["status"]["conditions"] =
        json!([{"type": "Failed", "status": "True", "reason": "TargetsFailed", "message": "2 of 6 targets failed"}]);
    let text = shown(view(&ended), (80, 12));
    assert!(text.contains("ended after 1m30s\nTargetsFailed: 2 of 6 targets failed"), "{text}");
    let mut new = small();
    new["status"] = json!(null);
    let text = shown(view(&new), (80, 12));
    assert!(text.contains(". 6 pending\nnothing has started\n") && text.contains("]   0%"), "{text}");
}

#[test]
fn nothing_that_a_terminal_would_act_on_reaches_a_cell() {
    let mut job = small();
    let evil = "\u{1b}]0;x\u{7}\u{9b}2J\u{202e}";
    job["metadata"]["name"] = json!(evil);
    job["spec"]["action"] = json!(evil);
    job["status"]["waitsFor"] = json!(evil);
    job["status"]["plugin"]["name"] = json!(evil);
    job["status"]["targetDetails"][0]["name"] = json!(evil);
    job["status"]["targetDetails"][2]["extraInfo"] = json!({ evil: evil });
    let text = shown(view(&job), (120, 30));
    assert!(
        text.contains("\\u{1b}]0;x") && text.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'),
        "{text}"
    );
}
