//! Turns errors of a store into sentences that tell an admin what to do.
//!
//! A sentence must not contain a credential. So it shows only the code and the message of an S3 error.

use std::error::Error;

use object_store::client::{HttpError, HttpErrorKind};

/// The text before the HTTP status in errors of the S3 client.
const STATUS: &str = "status code: ";

/// The reason why a file could not be stored or read, or may not be stored.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ArtefactsFailed {
    message: String,
    why: StoreFault,
}

/// The kind of a failure, which tells whether another try may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFault {
    /// The store refuses requests until an admin changes something.
    Refused,
    /// The store did not answer in time.
    Silent,
    /// The volume, or the share of the owner, is full.
    Full,
    /// Another try may succeed.
    Other,
}

impl ArtefactsFailed {
    pub(crate) fn new(message: String) -> Self {
        Self { message, why: StoreFault::Other }
    }

    /// Makes the failure of a full volume or share, with these words.
    pub(crate) fn full(message: String) -> Self {
        Self { message, why: StoreFault::Full }
    }

    /// Returns true if the volume or the share of the owner is full. Then another try fails too for now.
    pub fn is_full(&self) -> bool {
        self.why == StoreFault::Full
    }

    /// Makes the failure of a folder from an error of the object store. A full volume or disk quota counts as [`StoreFault::Full`].
    pub(crate) fn of_folder(error: &object_store::Error) -> Self {
        let io = causes(error).filter_map(|error| error.downcast_ref::<std::io::Error>());
        let is_full = |error: &std::io::Error| {
            matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
        };
        match io.into_iter().any(is_full) {
            true => Self::full(format!("the volume of files is full ({error}): an admin removes some or enlarges it")),
            false => Self::new(error.to_string()),
        }
    }

    pub(crate) fn why(&self) -> StoreFault {
        self.why
    }

    /// Makes the failure of a store that did not answer in time.
    pub(crate) fn silent(store: &str, seconds: f32) -> Self {
        let message =
            format!("{store} does not answer within {seconds} s: check that it is up and can be reached from here");
        Self { message, why: StoreFault::Silent }
    }

    /// Makes the failure of a bucket from an error of the object store.
    pub(crate) fn of_bucket(bucket: &str, error: &object_store::Error) -> Self {
        if let Some(failed) = Self::of_transport(bucket, error) {
            return failed;
        }
        let text = error.to_string();
        let code = between(&text, "<Code>", "</Code>").unwrap_or_default();
        let status = status(&text);
        let said = match (status, between(&text, "<Message>", "</Message>")) {
            (Some(status), Some(message)) => format!("{status} {code}: {message}"),
            (Some(status), None) => status.to_string(),
            _ => text.clone(),
        };
        let (message, why) = match status {
            _ if code == "NoSuchBucket" => {
                (format!("{bucket} does not exist: create it, or correct its name"), StoreFault::Refused)
            }
            _ if is_full(code) || status == Some(507) => {
                (format!("{bucket} has no room left ({said}): free some, or raise its quota"), StoreFault::Other)
            }
            _ if is_of_credentials(code) || matches!(status, Some(401 | 403)) => {
                let fix = "check the access key and its secret, and that it may put, get, list and delete objects";
                (format!("{bucket} refuses the request ({said}): {fix}"), StoreFault::Refused)
            }
            Some(400..=499) if !matches!(status, Some(404 | 408 | 429)) => (
                format!("{bucket} refuses the request ({said}): check its region and endpoint, and the access key"),
                StoreFault::Refused,
            ),
            Some(404) if code == "NoSuchKey" => {
                (format!("{bucket} does not have what is asked for ({said})"), StoreFault::Other)
            }
            Some(404) => {
                let fix = "check the access key, the endpoint and the name of the bucket";
                (format!("{bucket} is not known there ({said}): {fix}"), StoreFault::Refused)
            }
            Some(status) if status < 400 => {
                (format!("{bucket} is somewhere else ({said}): correct its region and endpoint"), StoreFault::Refused)
            }
            Some(_) => (format!("{bucket} fails ({said}): see the log of the store"), StoreFault::Other),
            None if text.contains("redirect") => {
                (format!("{bucket} is somewhere else: correct its region and endpoint"), StoreFault::Refused)
            }
            None => (format!("{bucket} fails: {said}"), StoreFault::Other),
        };
        Self { message, why }
    }

    /// Makes the failure of a request that got no answer. Returns `None` if there was an answer.
    fn of_transport(bucket: &str, error: &object_store::Error) -> Option<Self> {
        let kind = causes(error).find_map(|error| error.downcast_ref::<HttpError>()).map(HttpError::kind)?;
        if kind == HttpErrorKind::Timeout {
            let message = format!("{bucket} does not answer in time: check that it is up and can be reached from here");
            return Some(Self { message, why: StoreFault::Silent });
        }
        let cause = causes(error).last().map(ToString::to_string).unwrap_or_default();
        let (fix, why) = match cause.contains("certificate") {
            true => ("give the bundle of its CA, and use the name that its certificate has", StoreFault::Refused),
            false => ("check its endpoint, and that the store is up and can be reached from here", StoreFault::Other),
        };
        Some(Self { message: format!("{bucket} cannot be reached ({cause}): {fix}"), why })
    }
}

/// Returns the causes of an error, the root cause last.
pub(crate) fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |error| {
        let error: &'a (dyn Error + 'static) = *error;
        error.source()
    })
}

/// Returns true for the error codes of full stores. S3 itself is never full.
fn is_full(code: &str) -> bool {
    ["Quota", "InsufficientStorage", "StorageFull", "NoSpace"].iter().any(|word| code.contains(word))
}

/// Returns true for the error codes of wrong credentials. Stores send them with different statuses.
fn is_of_credentials(code: &str) -> bool {
    ["AccessKey", "Signature", "AccessDenied", "Token"].iter().any(|word| code.contains(word))
}

fn status(text: &str) -> Option<u16> {
    text.split_once(STATUS)?.1.get(..3)?.parse().ok()
}

fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    Some(text.split_once(from)?.1.split_once(to)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: &str, code: &str) -> ArtefactsFailed {
        let source = format!(
            "Error performing PUT http://h/b in 1ms - Server returned non-2xx {STATUS}{status}: <Error><Code>{code}</Code>\
             <Message>why</Message><StringToSign>AWS4</StringToSign></Error>"
        );
        ArtefactsFailed::of_bucket("bucket b", &object_store::Error::Generic { store: "S3", source: source.into() })
    }

    #[test]
    fn each_answer_of_a_store_says_what_to_do_and_which_are_in_vain_to_repeat() {
        let answers = [
            ("403 Forbidden", "SignatureDoesNotMatch", "check the access key", StoreFault::Refused),
            ("404 Not Found", "InvalidAccessKeyId", "check the access key", StoreFault::Refused),
            ("400 Bad Request", "ExpiredToken", "check the access key", StoreFault::Refused),
            ("403 Forbidden", "QuotaExceeded", "has no room left", StoreFault::Other),
            ("507 Insufficient Storage", "XMinioStorageFull", "free some", StoreFault::Other),
            ("404 Not Found", "NoSuchBucket", "create it", StoreFault::Refused),
            ("404 Not Found", "NoSuchKey", "does not have", StoreFault::Other),
            ("404 Not Found", "NoSuchUser", "check the access key, the endpoint", StoreFault::Refused),
            ("400 Bad Request", "AuthorizationHeaderMalformed", "check its region", StoreFault::Refused),
            ("429 Too Many Requests", "SlowDown", "see the log", StoreFault::Other),
            ("503 Service Unavailable", "SlowDown", "503 SlowDown: why", StoreFault::Other),
            ("301 Moved Permanently", "PermanentRedirect", "correct its region", StoreFault::Refused),
        ];
        for (status, code, expected, why) in answers {
            let failed = said(status, code);
            let message = failed.to_string();
            assert!(
                message.contains(expected) && message.starts_with("bucket b ") && !message.contains("AWS4"),
                "{message}"
            );
            assert_eq!(failed.why(), why, "{message}");
        }
    }
}
