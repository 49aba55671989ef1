//! Tests of commands as real processes, with the markers in a folder of their own.

use std::fs;
use std::time::Instant;

use super::*;

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("oarlock-node-exec-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("boot-id"), "boot-1\n").unwrap();
        Self(path)
    }

    fn place(&self) -> NodePaths {
        NodePaths { markers: self.0.join("commands"), boot_id: self.0.join("boot-id"), within: Vec::new() }
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left = fs::remove_dir_all(&self.0).is_err();
    }
}

fn script(text: &str) -> NodeCommand {
    let (id, text, interpreter) = ("oarlock-run-1".to_owned(), text.to_owned(), "/bin/sh".into());
    NodeCommand { id, text, interpreter, timeout: Duration::from_secs(60), expect_boot_id: None }
}

async fn never() {
    std::future::pending().await
}

async fn until(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn exit_code_boot_id_and_the_output_of_both_streams_are_the_result() {
    let folder = Folder::new("result");
    let result = script("echo out; sleep 0.1; echo err >&2; exit 7").run(&folder.place(), never()).await.unwrap();
    assert_eq!((result.exit_code, result.boot_id.as_str(), result.output.as_str()), (Some(7), "boot-1", "out\nerr\n"));
    let digest: String = Sha256::digest(b"out\nerr\n").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((result.sha256, result.truncated), (Some(digest), false));
}

#[tokio::test]
async fn a_command_runs_once_on_a_node_however_often_its_pod_starts() {
    let folder = Folder::new("once");
    let file = folder.0.join("runs");
    let text = format!("echo ran >> {}", file.display());
    script(&text).run(&folder.place(), never()).await.unwrap();
    let (one, two) = (folder.place(), folder.place());
    let (again, beside) = tokio::join!(script(&text).run(&one, never()), script(&text).run(&two, never()));
    for refused in [again, beside] {
        assert!(refused.unwrap_err().to_string().contains("at most once"));
    }
    assert_eq!(folder.text("runs"), "ran\n");
    let other = NodeCommand { id: "oarlock-run-2".into(), ..script(&text) };
    other.run(&folder.place(), never()).await.unwrap();
    assert_eq!(folder.text("runs"), "ran\nran\n");
}

#[tokio::test]
async fn of_two_that_begin_at_once_one_runs() {
    let folder = Folder::new("race");
    let text = format!("echo ran >> {}", folder.0.join("runs").display());
    let all = (0..16).map(|_| {
        let (text, place) = (text.clone(), folder.place());
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(script(&text).run(&place, never())).is_ok()
        })
    });
    let ran = futures::future::join_all(all.collect::<Vec<_>>()).await;
    assert_eq!(ran.into_iter().filter(|ran| *ran.as_ref().unwrap()).count(), 1);
    assert_eq!(folder.text("runs"), "ran\n");
}

#[tokio::test]
async fn a_node_that_was_booted_meanwhile_runs_nothing_and_has_no_marker() {
    let folder = Folder::new("boot");
    let text = format!("echo ran >> {}", folder.0.join("runs").display());
    let expecting = |id: &str| NodeCommand { expect_boot_id: Some(id.to_owned()), ..script(&text) };
    let refused = expecting("boot-0").run(&folder.place(), never()).await.unwrap_err().to_string();
    assert!(refused.contains("boot-1") && refused.contains("boot-0"), "{refused}");
    assert_eq!(folder.text("runs"), "");
    expecting("boot-1").run(&folder.place(), never()).await.unwrap();
    assert_eq!(folder.text("runs"), "ran\n");
}

#[tokio::test]
async fn of_ten_megabytes_of_output_the_end_is_kept_and_the_kubelet_takes_it() {
    let folder = Folder::new("output");
    let text = "i=0; while [ $i -lt 160 ]; do head -c 65536 /dev/zero; i=$((i+1)); done; echo the end";
    let result = script(text).run(&folder.place(), never()).await.unwrap();
    assert_eq!((result.exit_code, result.truncated, result.output.len()), (Some(0), true, 3 * 1024));
    let message = message(result).unwrap();
    assert!(message.len() <= MOST_RESULT);
    let read: NodeResult = serde_json::from_slice(&message).unwrap();
    assert!(read.truncated && read.output.ends_with("the end\n"));
}

#[tokio::test]
async fn at_its_timeout_a_command_ends_with_all_that_it_began() {
    let folder = Folder::new("timeout");
    let pid = folder.0.join("child");
    let text = format!("trap '' TERM; sleep 1000 & echo $! > {}; echo begun; wait; sleep 1000", pid.display());
    let command = NodeCommand { timeout: Duration::from_millis(500), ..script(&text) };
    let result = command.run(&folder.place(), never()).await.unwrap();
    assert_eq!((result.exit_code, result.output.as_str()), (None, "begun\n"));
    assert_eq!(result.message.as_deref(), Some("timed out after 0 s"));
    let child = folder.text("child").trim().to_owned();
    until(|| !is_running(&child)).await;
}

/// Returns true if the process runs, and is no zombie.
fn is_running(id: &str) -> bool {
    fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn a_command_that_is_asked_to_end_has_time_to_clean_up() {
    let folder = Folder::new("stop");
    let ready = folder.0.join("ready");
    let text = format!("trap 'echo cleaned; exit 3' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
    let stop = async move { until(|| ready.exists()).await };
    let result = script(&text).run(&folder.place(), stop).await.unwrap();
    // Some shells also report that `sleep` was terminated.
    assert!(result.exit_code.is_none() && result.output.contains("cleaned\n"), "{result:?}");
    assert_eq!(result.message.as_deref(), Some("cancelled: it was asked to end"));
}

#[tokio::test]
async fn what_a_command_leaves_behind_does_not_keep_its_result() {
    let folder = Folder::new("daemon");
    let begun = Instant::now();
    let result = script("sleep 20 & echo done").run(&folder.place(), never()).await.unwrap();
    assert_eq!((result.exit_code, result.output.as_str()), (Some(0), "done\n"));
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[tokio::test]
async fn of_a_command_without_a_result_the_first_word_says_whether_it_may_have_run() {
    let folder = Folder::new("words");
    let word = async |command: NodeCommand| {
        let refused = command.run(&folder.place(), never()).await.unwrap_err();
        unfinished(&refused).message.unwrap().split_once(": ").unwrap().0.to_owned()
    };
    let expecting = NodeCommand { expect_boot_id: Some("boot-0".to_owned()), ..script("true") };
    assert_eq!(word(expecting).await, "rebooted");
    let nothing = || NodeCommand { interpreter: "/no/such".into(), ..script("true") };
    assert_eq!(word(nothing()).await, "refused");
    assert_eq!(word(nothing()).await, "lost", "its marker is there");
}

#[tokio::test]
async fn an_interpreter_that_is_not_there_is_named_and_the_command_is_not_tried_again() {
    let folder = Folder::new("interpreter");
    let command = || NodeCommand { interpreter: "/no/such".into(), ..script("true") };
    assert!(command().run(&folder.place(), never()).await.unwrap_err().to_string().contains("/no/such"));
    assert!(command().run(&folder.place(), never()).await.unwrap_err().to_string().contains("at most once"));
}

#[test]
fn the_newest_markers_stay_whatever_the_clock_of_the_node_says_and_an_id_is_no_path() {
    let folder = Folder::new("markers");
    let markers = folder.0.join("commands");
    let id = |number: usize| format!("oarlock-run-{number}");
    for number in 0..6 {
        let marker = marker::make(&markers, &id(number)).unwrap();
        // The clock begins at the epoch, then jumps years ahead, then is right.
        let seconds = [0, 4_000_000_000, 1_800_000_000][number % 3];
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        fs::File::open(marker).unwrap().set_modified(time).unwrap();
    }
    marker::remove_oldest(&markers, 6);
    assert!((0..6).all(|number| marker::make(&markers, &id(number)).is_err()), "each was begun before");
    // A marker that another command is making has no number yet.
    fs::create_dir(markers.join("oarlock-run-now")).unwrap();
    marker::remove_oldest(&markers, 2);
    let kept: Vec<bool> = (0..6).map(|number| markers.join(id(number)).exists()).collect();
    assert_eq!(kept, [false, false, false, false, true, true]);
    assert!(markers.join("oarlock-run-now").exists());
    // The numbers continue after the remaining markers.
    marker::make(&markers, &id(9)).unwrap();
    marker::remove_oldest(&markers, 1);
    assert!(markers.join(id(9)).exists() && !markers.join(id(5)).exists());
    for id in ["", "..", "a/b", "../x"] {
        assert!(marker::make(&markers, id).is_err(), "{id:?}");
    }
}

#[test]
fn a_result_of_control_characters_is_cut_until_the_kubelet_takes_it() {
    let result =
        NodeResult { output: "\u{1}".repeat(3_000), message: Some("m".repeat(5_000)), ..NodeResult::default() };
    let text = message(result).unwrap();
    assert!(text.len() <= MOST_RESULT && serde_json::from_slice::<NodeResult>(&text).unwrap().truncated);
}

#[test]
fn a_script_that_was_changed_on_its_way_is_not_run() {
    let folder = Folder::new("changed");
    let path = folder.0.join("script");
    fs::write(&path, "true").unwrap();
    let digest: String = Sha256::digest(b"true").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(checked(&path, &digest).unwrap(), "true");
    assert!(checked(&path, "00").unwrap_err().to_string().contains(&digest));
}
