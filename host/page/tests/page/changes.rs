//! The events from one page to the next: only what changed, and never because time passes.

use k8s_openapi::jiff::SignedDuration;
use oarlock_page::{JobQuery, ListedJob, PartQuery, StreamEvent, list_content};

use crate::samples::{SampleJob, after, flow_after, listed, moved, of_flow, of_job};

/// The most bytes a second while 50 targets change a second.
const MOST_BYTES: usize = 100_000;

/// Returns the ids of the changed fragments.
fn changed(events: &[StreamEvent]) -> Vec<&str> {
    let mut ids = Vec::new();
    for event in events {
        if let StreamEvent::Fragment { id, .. } = event {
            ids.push(id.as_str());
        }
    }
    ids
}

fn page(ended: &[usize]) -> oarlock_page::PageContent {
    of_job("job", &SampleJob::of(moved(10_000, ended), false).view(), PartQuery::default()).content
}

#[test]
fn one_target_that_ends_changes_its_tile_its_row_and_the_sums() {
    let events = page(&[6_002]).changes_since(&page(&[]), 0);
    let ids = changed(&events);
    // The row of the ended target leaves the table, and the next row by need comes in. The next cell by need, in another tile, is a link.
    assert_eq!(ids[..5], ["head", "progress", "legend", "tile-24", "tile-25"], "{ids:?}");
    assert!(ids.len() == 6 && ids[5].starts_with("target-"), "{ids:?}");
    assert!(events.contains(&StreamEvent::Gone { of: 0, id: "target-6002".into() }));
    assert!(matches!(events.last(), Some(StreamEvent::At { at, .. }) if *at == page(&[6_002]).version()));
}

#[test]
fn fifty_changes_a_second_cost_less_than_a_hundred_kilobytes() {
    let together: Vec<usize> = (0..50).map(|at| 6_000 + at * 9).collect();
    // In the worst case, each change is in another tile, and is the only one of its kind there.
    let apart: Vec<usize> = (0..50).map(|at| at * 199).collect();
    for ended in [together, apart] {
        let wire: usize = page(&ended).changes_since(&page(&[]), 0).iter().map(|event| event.wire().len()).sum();
        println!("50 changes: {wire} bytes");
        assert!(wire > 1_000 && wire < MOST_BYTES, "{wire} bytes");
    }
}

#[test]
fn time_alone_changes_no_fragment() {
    let jobs = listed(200);
    let list = |seconds| list_content(&jobs, &JobQuery::default(), after(seconds));
    assert_eq!(list(3_600).changes_since(&list(3_000), 0), []);
    let html = of_job("job", &SampleJob::new(300, false).view(), PartQuery::default()).html();
    assert!(html.contains("data-is=\"age\"") && html.contains("data-is=\"until\""), "the script computes the ages");
}

#[test]
fn a_row_of_a_list_keeps_its_id_and_moves_if_it_needs_attention() {
    let mut jobs: Vec<ListedJob> = listed(5);
    let query = JobQuery::default();
    let now = after(3_600);
    let before = list_content(&jobs, &query, now);
    jobs[0] = ListedJob::of_job(&{
        let mut view = oarlock_view::JobView::default();
        (view.namespace, view.name, view.uid) = ("team-a".into(), "replace-web-0000".into(), "u-0".into());
        view.created = after(0).checked_sub(SignedDuration::ZERO).ok();
        view.progress = oarlock_view::ShownProgress::Failed;
        view
    });
    let after_change = list_content(&jobs, &query, now);
    let events = after_change.changes_since(&before, 3);
    assert_eq!(changed(&events), ["row-opj-u0"]);
    let order = |event: &StreamEvent| matches!(event, StreamEvent::Order { of: 3, list, ids } if list == "rows" && ids.len() == 10);
    assert!(events.iter().any(order), "{events:?}");
}

#[test]
fn one_step_that_ends_changes_its_box_and_its_row_also_in_a_large_flow() {
    let page = |ended: &[usize]| of_flow("flow", &flow_after(498, false, ended)).content;
    let events = page(&[240]).changes_since(&page(&[]), 0);
    let ids = changed(&events);
    assert!(ids.contains(&"step-240") && ids.contains(&"curves-49") && ids.contains(&"head"), "{ids:?}");
    let wire: usize = events.iter().map(|event| event.wire().len()).sum();
    assert!(wire < 12_000 && ids.len() <= 6, "{wire} bytes: {ids:?}");
}

#[test]
fn a_flow_has_fragments_for_its_graph_and_each_step() {
    let content = of_flow("flow", &crate::samples::flow(30, false)).content;
    let ids: Vec<&str> = content.fragments().map(|fragment| fragment.id.as_str()).collect();
    for id in [
        "head", "notices", "curves-1", "step-0", "step-31", "legend", "unit-0", "unit-31", "pager", "commands",
        "events",
    ] {
        assert!(ids.contains(&id), "{id} is not among {ids:?}");
    }
}
