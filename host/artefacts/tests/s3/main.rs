//! Writes and reads files in a bucket of a real S3 server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

mod server;

use std::fs::File;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use oarlock_artefacts::{Artefacts, FileName, PartName, S3Options, S3Place};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use reqwest::{Client, StatusCode};
use tokio::time::timeout;

use crate::server::{BUCKET, Runs, SECRET, Server};

const MIB: usize = 1024 * 1024;
const MINUTE: Duration = Duration::from_secs(60);

/// Returns an HTTP client without credentials.
fn client() -> Client {
    Client::builder().no_proxy().tls_certs_only([]).build().unwrap()
}

const fn file_of<'a>(job: &'a str, file: &'a str) -> FileName<'a> {
    FileName { job, file }
}

const fn part_of<'a>(job: &'a str, folder: &'a str, name: &'a str) -> PartName<'a> {
    PartName { job, folder, name }
}

async fn url(artefacts: &Artefacts, file: FileName<'_>, valid: Duration) -> String {
    artefacts.signed_url(file, valid).await.unwrap().unwrap()
}

async fn read(artefacts: &Artefacts, file: FileName<'_>) -> Vec<u8> {
    let answer = client().get(url(artefacts, file, MINUTE).await).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    answer.bytes().await.unwrap().to_vec()
}

/// Polls a condition until it holds.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let seen = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    assert!(timeout(MINUTE, seen).await.is_ok(), "{what}");
}

fn now() -> Timestamp {
    // The server runs on this machine, so the time of a new file is the server's time.
    let path = std::env::temp_dir().join(format!("oarlock-s3-now-{}", std::process::id()));
    let made = File::create(&path).unwrap().metadata().unwrap().modified().unwrap();
    let _gone = std::fs::remove_file(path);
    let made = made.duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_second(i64::try_from(made.as_secs()).unwrap()).unwrap()
}

async fn refusal(url: &str, options: &S3Options) -> String {
    Artefacts::in_bucket(S3Place::read(url, options).unwrap()).await.unwrap_err()
}

#[tokio::test]
async fn a_file_is_published_whole_and_replaced() {
    let server = Server::start("whole").await;
    let artefacts = server.artefacts().await;
    assert!(artefacts.folder().is_none() && artefacts.streams() == 4);
    assert!(server.files().is_empty(), "what the bucket was tried with is gone");
    for text in ["first", "second"] {
        let told = artefacts.publish(file_of("check-a", "report.json"), text.into(), now()).await;
        assert_eq!(told.unwrap(), "artifact:check-a/report.json");
        assert_eq!(read(&artefacts, file_of("check-a", "report.json")).await, text.as_bytes());
    }
    let empty = artefacts.write(file_of("check-a", "empty.log"), now()).await.unwrap();
    assert_eq!(empty.finish().await.unwrap(), 0);
    assert_eq!(server.files(), ["artefacts/check-a/empty.log", "artefacts/check-a/report.json"]);
    assert!(!format!("{artefacts:?}").contains(SECRET));
}

#[tokio::test]
async fn a_large_file_goes_up_in_pieces_of_five_mebibytes_and_a_small_one_at_once() {
    let server = Server::start("pieces").await;
    let artefacts = server.artefacts().await;
    let text: Vec<u8> = (0..12 * MIB).map(|n| b'a' + u8::try_from(n % 23).unwrap()).collect();
    let mut upload = artefacts.write(file_of("job", "web.log"), now()).await.unwrap();
    for chunk in text.chunks(100_000) {
        upload.write(chunk).await.unwrap();
    }
    assert_eq!((server.pieces(), server.files().len()), (2, 0));
    assert_eq!(upload.finish().await.unwrap(), 12 * MIB as u64);
    let answer = client().get(url(&artefacts, file_of("job", "web.log"), MINUTE).await).send().await.unwrap();
    let of_pieces = answer.headers()["etag"].to_str().unwrap().to_owned();
    assert!(of_pieces.ends_with("-3\""), "{of_pieces}");
    assert_eq!(answer.headers()["content-type"], "text/plain; charset=utf-8");
    assert!(answer.bytes().await.unwrap() == text);
    let mut small = artefacts.write(file_of("job", "small.log"), now()).await.unwrap();
    small.write(&text[..5 * MIB - 1]).await.unwrap();
    assert_eq!(server.pieces(), 0);
    small.finish().await.unwrap();
    assert!(read(&artefacts, file_of("job", "small.log")).await == text[..5 * MIB - 1]);
}

#[tokio::test]
async fn an_upload_that_is_dropped_leaves_nothing() {
    let server = Server::start("dropped").await;
    let artefacts = server.artefacts().await;
    let mut upload = artefacts.write_part(part_of("job", "p", "c")).await.unwrap();
    upload.write(&vec![b'x'; 11 * MIB]).await.unwrap();
    assert_eq!(server.pieces(), 2);
    drop(upload);
    until("the upload is aborted", || server.pieces() == 0).await;
    assert!(artefacts.find_part(part_of("job", "p", "c"), 9).await.unwrap().is_none());
}

#[tokio::test]
async fn a_log_put_together_of_parts_is_the_one_that_a_folder_has() {
    let server = Server::start("log").await;
    let folder = std::env::temp_dir().join(format!("oarlock-s3-log-folder-{}", std::process::id()));
    let _none = std::fs::remove_dir_all(&folder);
    let stores = [server.artefacts().await, Artefacts::in_folder(&folder).unwrap()];
    let line = |part: usize, number: usize| {
        let second = number / 4 + part % 3;
        format!("2026-01-01T00:{:02}:{:02}.000000000Z d/p{part}/c {}\n", second / 60, second % 60, "x".repeat(700))
    };
    let mut whole = Vec::new();
    for store in &stores {
        // One merge cannot read all parts: 20 parts have more than 1 MiB, and 40 parts are small.
        for part in 0..60 {
            let mut upload = store.write_part(part_of("job", &format!("p{part:02}"), "c")).await.unwrap();
            for number in 0..(if part < 20 { 1_600 } else { 20 }) {
                upload.write(line(part, number).as_bytes()).await.unwrap();
            }
            upload.finish().await.unwrap();
        }
        assert_eq!(store.jobs_with_parts().await.unwrap(), ["job"]);
        let upload = store.write(file_of("j", "web.log"), now()).await.unwrap();
        let merged = store.merge_parts("job", upload, |_| {}).await.unwrap();
        assert_eq!(merged.lines, 20 * 1_600 + 40 * 20);
        assert_eq!(store.parts("job").await.unwrap().len(), 60, "what turns have made is gone");
        store.drop_parts("job").await.unwrap();
        assert!(store.parts("job").await.unwrap().is_empty());
        let read = match store.folder() {
            Some(folder) => std::fs::read(folder.join("j/web.log")).unwrap(),
            None => read(store, file_of("j", "web.log")).await,
        };
        assert_eq!(merged.bytes, read.len() as u64);
        whole.push(read);
    }
    assert!(
        whole[0] == whole[1]
            && whole[0]
                .split(|byte| *byte == b'\n')
                .map(|line| line.get(..30))
                .is_sorted_by(|a, b| b.is_none() || a <= b)
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn an_address_yields_its_file_alone_and_until_it_ends() {
    let server = Server::start("signed").await;
    let artefacts = server.artefacts().await;
    for file in ["a.log", "b.log"] {
        artefacts.publish(file_of("job", file), b"0123456789".to_vec(), now()).await.unwrap();
    }
    let good = url(&artefacts, file_of("job", "a.log"), MINUTE).await;
    let some = client().get(&good).header("range", "bytes=2-4").send().await.unwrap();
    assert_eq!(some.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(some.text().await.unwrap(), "234");
    let other = client().get(good.replace("a.log", "b.log")).send().await.unwrap();
    let written = client().put(&good).body("x").send().await.unwrap();
    let removed = client().delete(&good).send().await.unwrap();
    assert_eq!([other.status(), written.status(), removed.status()], [StatusCode::FORBIDDEN; 3]);
    let short = url(&artefacts, file_of("job", "a.log"), Duration::from_secs(1)).await;
    let ended = async { while client().get(&short).send().await.unwrap().status() != StatusCode::FORBIDDEN {} };
    timeout(MINUTE, ended).await.unwrap();
    let words = artefacts.signed_url(file_of("job", "a.log"), 12_000 * MINUTE).await.unwrap().unwrap_err().to_string();
    assert!(words.contains("a week"), "{words}");
    let outside = url(&artefacts, file_of("..", "../a.log"), MINUTE).await;
    assert!(outside.contains(&format!("/{BUCKET}/%252E%252E/..%252Fa.log?")), "{outside}");
}

#[tokio::test]
async fn what_is_older_than_thirty_days_goes() {
    let server = Server::start("old").await;
    let artefacts = server.artefacts().await;
    artefacts.publish(file_of("check-a", "old.json"), b"old".to_vec(), now()).await.unwrap();
    let mut part = artefacts.write_part(part_of("job", "p", "c")).await.unwrap();
    part.write(b"old").await.unwrap();
    part.finish().await.unwrap();
    artefacts.publish(file_of("check-b", "kept.json"), b"kept".to_vec(), now()).await.unwrap();
    let ago = |days: u32| {
        File::open(server.bucket()).unwrap().metadata().unwrap().modified().unwrap() - 1_440 * days * MINUTE
    };
    for (file, days) in [("check-a/old.json", 31), (".parts/job/p/c", 31), ("check-b/kept.json", 29)] {
        File::open(server.bucket().join("artefacts").join(file)).unwrap().set_modified(ago(days)).unwrap();
    }
    let later = server.artefacts().await;
    later.publish(file_of("check-c", "new.json"), b"new".to_vec(), now()).await.unwrap();
    until("old files are gone", || server.files() == ["artefacts/check-b/kept.json", "artefacts/check-c/new.json"])
        .await;
}

#[tokio::test]
async fn what_is_wrong_with_a_bucket_is_said_at_the_start() {
    let server = Server::start("wrong").await;
    let bucket = format!("s3://{BUCKET}");
    let wrong = S3Options { secret_key: Some("another".to_owned()), ..server.options() };
    let words = refusal(&bucket, &wrong).await;
    assert!(words.starts_with(&format!("the bucket {BUCKET} at http://127.0.0.1:")), "{words}");
    assert!(
        words.contains("SignatureDoesNotMatch") && words.contains("check the access key and its secret"),
        "{words}"
    );
    let wrong = S3Options { access_key: Some("AKIAOTHER".to_owned()), ..server.options() };
    assert!(refusal(&bucket, &wrong).await.contains("check the access key"));
    let words = refusal("s3://no-such-bucket", &server.options()).await;
    assert!(
        words.contains("the bucket no-such-bucket at ") && words.ends_with("create it, or correct its name"),
        "{words}"
    );
    let wrong = S3Options { region: Some("eu-central-1".to_owned()), ..server.options() };
    let words = refusal(&bucket, &wrong).await;
    assert!(words.contains("check its region"), "{words}");
}

#[tokio::test]
async fn a_server_that_hangs_fails_an_upload_in_time_and_is_used_again() {
    let server = Server::start("hangs").await;
    let artefacts = server.hasty().await;
    let mut upload = artefacts.write(file_of("job", "web.log"), now()).await.unwrap();
    upload.write(&vec![b'x'; 6 * MIB]).await.unwrap();
    server.freeze();
    let failed = timeout(Duration::from_secs(20), upload.write(&vec![b'x'; 5 * MIB])).await.unwrap();
    let words = failed.unwrap_err().to_string();
    assert!(words.contains(&format!("the bucket {BUCKET} at ")) && words.contains("does not answer"), "{words}");
    assert!(timeout(Duration::from_secs(5), artefacts.parts("job")).await.unwrap().is_err());
    drop(upload);
    server.thaw();
    // The server first works through the requests that arrived while it was paused.
    let back =
        async { while artefacts.publish(file_of("job", "report.json"), b"back".to_vec(), now()).await.is_err() {} };
    timeout(MINUTE, back).await.unwrap();
    assert_eq!(server.files(), ["artefacts/job/report.json"]);
}

#[tokio::test]
async fn a_server_that_is_killed_fails_an_upload_and_is_used_again_once_it_is_back() {
    let mut server = Server::start("killed").await;
    let artefacts = server.artefacts().await;
    let mut upload = artefacts.write(file_of("job", "web.log"), now()).await.unwrap();
    upload.write(&vec![b'x'; 6 * MIB]).await.unwrap();
    server.kill();
    let words = upload.write(&vec![b'x'; 5 * MIB]).await.unwrap_err().to_string();
    assert!(words.contains("cannot be reached") && words.contains("check its endpoint"), "{words}");
    drop(upload);
    // A host that starts while the store is down uses the store as soon as the store is up.
    let late = server.artefacts().await;
    assert!(late.publish(file_of("job", "report.json"), Vec::new(), now()).await.is_err());
    server.restart().await;
    for artefacts in [artefacts, late] {
        artefacts.publish(file_of("job", "report.json"), b"back".to_vec(), now()).await.unwrap();
        assert_eq!(server.files(), ["artefacts/job/report.json"]);
    }
}

#[tokio::test]
async fn a_server_with_a_full_disk_is_said_to_be_full_and_takes_what_fits_afterwards() {
    let server = Server::start_as("full", Runs { disk: Some(8), ..Runs::default() }).await;
    let artefacts = server.artefacts().await;
    let mut upload = artefacts.write(file_of("job", "web.log"), now()).await.unwrap();
    upload.write(&vec![b'x'; 5 * MIB]).await.unwrap();
    let words = upload.write(&vec![b'x'; 5 * MIB]).await.unwrap_err().to_string();
    assert!(words.contains("has no room left") && words.contains("free some, or raise its quota"), "{words}");
    drop(upload);
    let fits = async { while artefacts.publish(file_of("job", "fits"), vec![b'x'; 6 * MIB], now()).await.is_err() {} };
    timeout(MINUTE, fits).await.unwrap();
    assert_eq!(read(&artefacts, file_of("job", "fits")).await.len(), 6 * MIB);
}

#[tokio::test]
async fn a_private_ca_is_trusted_where_its_bundle_is_given() {
    let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let bundle = ca.self_signed(&ca_key).unwrap().pem();
    let own = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let own = own.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    let server = Server::start_as("tls", Runs { tls: Some((own.pem(), key.serialize_pem())), ..Runs::default() }).await;
    let trusting = S3Options { ca: Some(bundle), ..server.options() };
    let place = S3Place::read(&format!("s3://{BUCKET}"), &trusting).unwrap();
    let artefacts = Artefacts::in_bucket(place).await.unwrap();
    artefacts.publish(file_of("job", "report.json"), b"secure".to_vec(), now()).await.unwrap();
    assert_eq!(server.files(), ["artefacts/job/report.json"]);
    assert!(url(&artefacts, file_of("job", "report.json"), MINUTE).await.starts_with("https://127.0.0.1:"));
    let other = KeyPair::generate().unwrap();
    let other = CertificateParams::new(vec!["ca".to_owned()]).unwrap().self_signed(&other).unwrap().pem();
    let words = refusal(&format!("s3://{BUCKET}"), &S3Options { ca: Some(other), ..trusting }).await;
    assert!(words.contains("cannot be reached") && words.contains("give the bundle of its CA"), "{words}");
}

#[tokio::test]
async fn stores_with_prefixes_do_not_see_each_other() {
    let server = Server::start("prefix").await;
    let at = async |prefix: &str| {
        let place = S3Place::read(&format!("s3://{BUCKET}/{prefix}"), &server.options()).unwrap();
        Artefacts::in_bucket(place).await.unwrap()
    };
    let (one, other) = (at("clusters/one").await, at("clusters/other/").await);
    for (store, text) in [(&one, "one"), (&other, "other")] {
        store.publish(file_of("job", "report.json"), text.into(), now()).await.unwrap();
        let mut part = store.write_part(part_of("uid", "p", text)).await.unwrap();
        part.write(text.as_bytes()).await.unwrap();
        part.finish().await.unwrap();
    }
    assert_eq!(read(&one, file_of("job", "report.json")).await, b"one");
    assert_eq!(read(&other, file_of("job", "report.json")).await, b"other");
    one.drop_parts("uid").await.unwrap();
    assert!(one.jobs_with_parts().await.unwrap().is_empty());
    assert_eq!(other.parts("uid").await.unwrap().len(), 1);
    assert_eq!(
        server.files(),
        [
            "clusters/one/artefacts/job/report.json",
            "clusters/other/artefacts/.parts/uid/p/other",
            "clusters/other/artefacts/job/report.json"
        ]
    );
}
