//! Merges logs in the format of the Kubernetes API into one file, in a real folder.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::sync::Arc;

use futures::io::{AsyncBufRead, BufReader, Cursor};
use k8s_openapi::jiff::Timestamp;
use oarlock_artefacts::line_time::LineTime;
use oarlock_artefacts::part::{LogRoom, OwnerLogs, PartOf, Written, write_part};
use oarlock_artefacts::{Artefacts, FileName, PartName};
use proptest::prelude::*;

const PART: PartName<'_> = PartName { job: "job", folder: "p", name: "c" };
const ALL: &str = "9999-01-01T00:00:00Z";

struct Folder(std::path::PathBuf, Artefacts);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("oarlock-logs-{name}-{}", std::process::id()));
        let _none = std::fs::remove_dir_all(&folder);
        let artefacts = Artefacts::in_folder(&folder).unwrap();
        Self(folder, artefacts)
    }

    async fn part(
        &self,
        (pod, name): (&str, &str),
        log: impl AsyncBufRead + Unpin,
        until: &str,
        room: &LogRoom,
    ) -> Written {
        let label = format!("d/{pod}/{name}");
        let began = LineTime::read(b"2026-01-01T00:00:00Z").unwrap();
        let room = room.of_part();
        let of = PartOf { label: &label, began, until: LineTime::read(until.as_bytes()).unwrap(), room: &room };
        let mut upload = self.1.write_part(PartName { job: "job", folder: pod, name }).await.unwrap();
        let written = write_part(log, &of, &mut upload).await.unwrap();
        upload.finish().await.unwrap();
        room.keep();
        written
    }

    async fn whole(&self) -> (u64, Vec<u8>) {
        let upload = self.1.write(FileName { job: "j", file: "web.log" }, Timestamp::UNIX_EPOCH).await.unwrap();
        let merged = self.1.merge_parts("job", upload, |_| {}).await.unwrap();
        let bytes = std::fs::read(self.0.join("artefacts/j/web.log")).unwrap();
        assert_eq!(merged.bytes, bytes.len() as u64);
        (merged.lines, bytes)
    }

    async fn text(&self) -> String {
        String::from_utf8(self.whole().await.1).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn room() -> LogRoom {
    LogRoom::of(1 << 40)
}

#[tokio::test]
async fn lines_of_all_containers_are_in_the_order_of_their_times() {
    let folder = Folder::new("order");
    let one = "2026-01-01T00:00:01Z a\n2026-01-01T00:00:04.5Z d\n";
    let two = "2026-01-01T02:00:02+02:00 b\n2026-01-01T00:00:03.000000001Z c";
    folder.part(("p", "one"), one.as_bytes(), ALL, &room()).await;
    folder.part(("p", "two"), two.as_bytes(), ALL, &room()).await;
    let expected = "2026-01-01T00:00:01.000000000Z d/p/one a\n2026-01-01T00:00:02.000000000Z d/p/two b\n\
                    2026-01-01T00:00:03.000000001Z d/p/two c\n2026-01-01T00:00:04.500000000Z d/p/one d\n";
    assert_eq!(folder.text().await, expected);
}

#[tokio::test]
async fn a_clock_that_runs_backwards_and_lines_without_a_time_stay_where_they_were() {
    let folder = Folder::new("clock");
    let log = "2026-01-01T00:00:05Z a\nno time\n2026-01-01T00:00:01Z b\n\nunable to retrieve container logs\n2026-01-01T00:00:06Z\n";
    let written = folder.part(("p", "c"), log.as_bytes(), ALL, &room()).await;
    let expected = "2026-01-01T00:00:05.000000000Z d/p/c a\n2026-01-01T00:00:05.000000000Z d/p/c no time\n\
                    2026-01-01T00:00:05.000000000Z d/p/c b\n2026-01-01T00:00:05.000000000Z d/p/c \n\
                    2026-01-01T00:00:05.000000000Z d/p/c unable to retrieve container logs\n2026-01-01T00:00:06.000000000Z d/p/c \n";
    assert_eq!((folder.text().await.as_str(), written.lines), (expected, 6));
}

/// Writes a log that arrives in pieces of this size, and returns the error.
async fn refused(folder: &Folder, text: &str, piece: usize) -> String {
    let (room, until) = (room(), LineTime::read(ALL.as_bytes()).unwrap());
    let mut upload = folder.1.write_part(PART).await.unwrap();
    let mine = room.of_part();
    let of = PartOf { label: "d/p/c", began: LineTime::LEAST, until, room: &mine };
    let pieces = text.as_bytes().chunks(piece).map(|piece| Ok(piece.to_owned()));
    let log = futures::TryStreamExt::into_async_read(futures::stream::iter(pieces));
    write_part(log, &of, &mut upload).await.unwrap_err().to_string()
}

#[tokio::test]
async fn an_answer_that_does_not_begin_with_a_time_is_no_log_and_its_words_are_told() {
    let folder = Folder::new("words");
    let kubelet = "unable to retrieve container logs for containerd://x";
    let html = "<html>\r\n<h1>502 Bad Gateway</h1>\n2026-01-01T00:00:01Z a\n";
    let endless = format!("{}\n", "é".repeat(300_000));
    for piece in [1, 7, 4_096] {
        for text in [kubelet, &format!("{kubelet}\n"), " ", "2026-01-01 a\n", html, &endless] {
            let said = refused(&folder, text, piece).await;
            let words: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            assert!(said.len() < 560, "{}", said.len());
            let (begins, rest) = ("in place of a log came: ", said.trim_end_matches('\u{fffd}'));
            assert!(words.trim().starts_with(rest.strip_prefix(begins).unwrap()), "{said}");
        }
    }
    assert_eq!(refused(&folder, kubelet, 9).await, format!("in place of a log came: {kubelet}"));
}

#[tokio::test]
async fn a_log_that_ends_amid_a_line_without_a_time_was_broken_off() {
    let folder = Folder::new("broken-off");
    for piece in [1, 9, 4_096] {
        let said = refused(&folder, "2026-01-01T00:00:01Z a\nrpc error: code = Unknown desc = x", piece).await;
        assert_eq!(said, "the log broke off with: rpc error: code = Unknown desc = x");
    }
    let whole = "2026-01-01T00:00:01Z a\n2026-01-01T00:00:02Z without an end";
    assert_eq!(folder.part(("p", "c"), whole.as_bytes(), ALL, &room()).await.lines, 2);
    assert_eq!(folder.part(("p", "silent"), &b""[..], ALL, &room()).await.lines, 0);
}

#[tokio::test]
async fn a_log_that_never_ends_is_read_up_to_its_time() {
    let folder = Folder::new("endless");
    let lines = (0..).map(|n: u64| Ok(format!("2026-01-01T00:{:02}:{:02}Z {n}\n", n.min(99) / 60, n.min(99) % 60)));
    let log = futures::TryStreamExt::into_async_read(futures::stream::iter(lines));
    let written = folder.part(("p", "c"), log, "2026-01-01T00:01:01Z", &room()).await;
    assert_eq!(written.lines, 62);
    assert!(folder.text().await.ends_with("d/p/c 61\n"));
}

#[tokio::test]
async fn a_clock_that_was_ahead_for_a_while_costs_its_lines_alone() {
    let folder = Folder::new("ahead");
    let log = "2026-01-01T00:00:01Z a\n2036-01-01T00:00:01Z b\nno time\n2026-01-01T00:00:02Z c\n2036-01-01T00:00:03Z d";
    let written = folder.part(("p", "c"), log.as_bytes(), "2026-01-02T00:00:00Z", &room()).await;
    let expected = "2026-01-01T00:00:01.000000000Z d/p/c a\n2026-01-01T00:00:02.000000000Z d/p/c c\n";
    assert_eq!((folder.text().await.as_str(), written.lines), (expected, 2));
}

#[tokio::test]
async fn a_part_that_is_not_kept_gives_its_room_back() {
    let folder = Folder::new("back");
    let room = LogRoom::of(2 * 1024 * 1024);
    let mut log = b"2026-01-01T00:00:01Z ".to_vec();
    log.resize(3 * 1024 * 1024, b'x');
    let until = LineTime::read(ALL.as_bytes()).unwrap();
    for _ in 0..2 {
        let (mut upload, mine) = (folder.1.write_part(PART).await.unwrap(), room.of_part());
        let of = PartOf { label: "d/p/c", began: until, until, room: &mine };
        let pieces = log.chunks(64 * 1024).map(|piece| Ok(piece.to_owned()));
        let log = futures::TryStreamExt::into_async_read(futures::stream::iter(pieces));
        let written = write_part(log, &of, &mut upload).await.unwrap();
        assert!(written.bytes > 1024 * 1024 && room.was_short(), "{written:?}");
    }
}

#[tokio::test]
async fn jobs_of_one_owner_share_what_it_has_until_they_are_gone() {
    let folder = Folder::new("owner");
    let owner = Arc::new(OwnerLogs::default());
    let line = "2026-01-01T00:00:01Z aaaa\n";
    let length = "2026-01-01T00:00:01.000000000Z d/p/c aaaa\n".len() as u64;
    let first = LogRoom::within(1 << 40, 0, owner.clone());
    owner.allow(2 * length);
    assert_eq!(folder.part(("p", "c"), line.as_bytes(), ALL, &first).await.lines, 1);
    let second = LogRoom::within(1 << 40, 0, owner.clone());
    owner.allow(2 * length);
    assert_eq!(folder.part(("p", "d"), line.as_bytes(), ALL, &second).await.lines, 1);
    assert!(owner.is_used_up() && !second.was_short());
    assert_eq!(folder.part(("p", "e"), line.as_bytes(), ALL, &first).await.lines, 0);
    assert!(first.was_short());
    drop((first, second));
    owner.allow(2 * length);
    assert!(!owner.is_used_up(), "they are gone, and what they had is free");
}

#[tokio::test]
async fn lines_of_megabytes_and_bytes_that_are_no_text_go_through_whole() {
    let folder = Folder::new("long");
    let mut log = b"2026-01-01T00:00:01Z ".to_vec();
    log.extend(std::iter::repeat_n(0xff, 3 * 1024 * 1024));
    log.extend_from_slice(b"\n2026-01-01T00:00:03Z end\n");
    folder.part(("p", "long"), BufReader::new(Cursor::new(log)), ALL, &room()).await;
    folder.part(("p", "short"), "2026-01-01T00:00:02Z s\n".as_bytes(), ALL, &room()).await;
    let (lines, bytes) = folder.whole().await;
    assert_eq!((lines, bytes.iter().filter(|byte| **byte == 0xff).count()), (3, 3 * 1024 * 1024));
    assert!(bytes.ends_with(b"Z d/p/short s\n2026-01-01T00:00:03.000000000Z d/p/long end\n"));
}

#[tokio::test]
async fn what_has_no_room_is_left_out_and_the_last_line_ends() {
    let folder = Folder::new("room");
    let pieces = ["2026-01-01T00:00:01Z ", "aaaa", "bbbb", "\n2026-01-01T00:00:02Z c\n"];
    let log = futures::TryStreamExt::into_async_read(futures::stream::iter(pieces.map(|piece| Ok(piece.to_owned()))));
    let room = LogRoom::of(40);
    let written = folder.part(("p", "c"), log, ALL, &room).await;
    assert_eq!((written.lines, room.was_short()), (1, true));
    assert_eq!(folder.text().await, "2026-01-01T00:00:01.000000000Z d/p/c aaaa\n");
}

#[tokio::test]
async fn more_parts_than_are_read_at_once_are_put_together_all_the_same() {
    let folder = Folder::new("many");
    for number in 0..1_100 {
        let log = format!("2026-01-01T00:00:{:02}Z {number}\n", number % 60);
        folder.part((&format!("p{number:04}"), "c"), log.as_bytes(), ALL, &room()).await;
    }
    let whole = folder.text().await;
    let keys: Vec<&str> = whole.lines().collect();
    assert!(keys.len() == 1_100 && keys.is_sorted(), "{}", keys.len());
    assert_eq!(folder.text().await, whole, "it can be made anew");
    assert_eq!(folder.1.jobs_with_parts().await.unwrap(), ["job"]);
    folder.1.drop_parts("job").await.unwrap();
    assert!(folder.1.parts("job").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_part_that_was_not_finished_is_not_there() {
    let folder = Folder::new("unfinished");
    let mut upload = folder.1.write_part(PART).await.unwrap();
    upload.write(&vec![b'x'; 3 * 1024 * 1024]).await.unwrap();
    assert!(folder.1.parts("job").await.unwrap().is_empty());
    drop(upload);
    assert!(folder.1.find_part(PART, 9).await.unwrap().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any logs in pieces of any size, the file has every line once and in the order of times. It keeps the order of each container's lines.
    #[test]
    fn nothing_is_lost_nothing_comes_twice_and_times_never_fall(
        logs in prop::collection::vec(prop::collection::vec((0u32..50, "[a-z ]{0,80}"), 0..40), 1..8),
        piece in 1usize..200,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = Folder::new(&format!("prop-{}", rand_name(&logs, piece)));
            for (number, lines) in logs.iter().enumerate() {
                let text: String = lines.iter().map(|(second, line)| format!("2026-01-01T00:00:{second:02}.5Z {line}\n")).collect();
                let pieces: Vec<_> = text.into_bytes().chunks(piece).map(|piece| Ok(piece.to_vec())).collect();
                let log = futures::TryStreamExt::into_async_read(futures::stream::iter(pieces));
                folder.part((&format!("p{number}"), "c"), log, ALL, &room()).await;
            }
            let whole = folder.text().await;
            let all: Vec<&str> = whole.lines().collect();
            assert_eq!(all.len(), logs.iter().map(Vec::len).sum::<usize>());
            assert!(all.iter().map(|line| &line[..30]).is_sorted());
            for (number, lines) in logs.iter().enumerate() {
                let label = format!(" d/p{number}/c ");
                let own: Vec<&str> = all.iter().filter_map(|line| line.split_once(label.as_str()).map(|(_, text)| text)).collect();
                assert_eq!(own, lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>());
            }
        });
    }
}

/// Returns a name for the folder of this test case.
fn rand_name(logs: &[Vec<(u32, String)>], piece: usize) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    (logs, piece).hash(&mut hasher);
    hasher.finish()
}
