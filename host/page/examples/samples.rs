//! Writes every page that the crate can show into a folder, with its files and with the events of a change: `samples FOLDER`.
//!
//! A page is `NAME.html`. The files of the page are at their own paths. `changes.events` has the events of 50 targets that ended on the
//! page `job-10000.html`, which is `changed.html` after them. `flow-changes.events` does the same for steps of `flow-30.html`.
#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the example shares the samples of the tests"
)]

use std::path::Path;

use oarlock_page::{PartQuery, StreamEvent, assets};

#[path = "../tests/page/samples.rs"]
mod samples;

fn main() {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "target/page-samples".to_owned());
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder).unwrap();
    for page in samples::all() {
        let html = page.html();
        println!(
            "{:<24} {:>8} bytes  {}",
            page.file,
            html.len(),
            page.address.as_ref().map(ToString::to_string).unwrap_or_default().chars().take(80).collect::<String>()
        );
        std::fs::write(folder.join(format!("{}.html", page.file)), html).unwrap();
    }
    for asset in assets() {
        let path = folder.join(asset.path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        println!("{:<48} {:>8} bytes", asset.path, asset.body.len());
        std::fs::write(path, asset.body).unwrap();
    }
    let ended: Vec<usize> = (0..50).map(|at| 6_000 + at * 9).collect();
    let page =
        |details| samples::of_job("changed", &samples::SampleJob::of(details, false).view(), PartQuery::default());
    let (before, now) = (page(samples::moved(10_000, &[])), page(samples::moved(10_000, &ended)));
    std::fs::write(folder.join("changed.html"), now.html()).unwrap();
    let wire: String = now.content.changes_since(&before.content, 0).iter().map(StreamEvent::wire).collect();
    println!("{:<24} {:>8} bytes", "changes.events", wire.len());
    let flow = |ended: &[usize]| samples::of_flow("flow-changed", &samples::flow_after(30, false, ended));
    let (before, now) = (flow(&[]), flow(&[16, 19, 21]));
    std::fs::write(folder.join("flow-changed.html"), now.html()).unwrap();
    let steps: String = now.content.changes_since(&before.content, 0).iter().map(StreamEvent::wire).collect();
    std::fs::write(folder.join("flow-changes.events"), steps).unwrap();
    std::fs::write(folder.join("changes.events"), wire).unwrap();
}
