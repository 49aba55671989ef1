//! Answers a request for a file: with the whole file, parts of it, or the fact that it has not changed. Source: docs/opsjob-rest.md 7.
//!
//! Follows RFC 9110. The crate tower-http evaluates conditions and single ranges. It supports neither `If-Range` nor several ranges, so
//! this module does.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use axum::body::{Body, Bytes};
use futures::future::ready;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use tower_http::services::ServeFile;

use crate::ranges::{Wanted, length, wanted};
use crate::serve::random_id;

/// The bytes of a file that are read at a time, for each connection.
pub(crate) const CHUNK: usize = 16 * 1024;

/// Answers a GET or a HEAD of a file.
///
/// # Errors
/// If the file cannot be read.
pub(crate) async fn file_answer(path: &Path, request: Request<Body>) -> io::Result<Response<Body>> {
    let (method, mut headers) = (request.method().clone(), request.headers().clone());
    let (range, if_range) = (headers.remove(header::RANGE), headers.remove(header::IF_RANGE));
    // A range applies to `GET` only.
    let Some(range) = range.filter(|_| method == Method::GET) else { return serve(path, method, headers).await };
    let head = serve(path, Method::HEAD, headers.clone()).await?;
    if head.status() != StatusCode::OK {
        return serve(path, method, headers).await;
    }
    // This drops the body of the answer, so that its file is not open during the next calls.
    let head = head.into_parts().0.headers;
    let own = |name| head.get(name);
    let is_same = |given: &HeaderValue| [own(header::ETAG), own(header::LAST_MODIFIED)].contains(&Some(given));
    if !if_range.as_ref().is_none_or(is_same) {
        return serve(path, method, headers).await;
    }
    let size = own(header::CONTENT_LENGTH).and_then(|size| size.to_str().ok()?.parse().ok()).unwrap_or(0);
    match wanted(range.to_str().unwrap_or_default(), size) {
        Wanted::Whole => {}
        Wanted::Nothing => drop(headers.insert(header::RANGE, value(format!("bytes={size}-")))),
        Wanted::Parts(parts) => match parts.as_slice() {
            [one] => drop(headers.insert(header::RANGE, range_of(one))),
            _ => return Ok(several(path, &head, &parts, size)),
        },
    }
    serve(path, method, headers).await
}

/// Returns the answer to a request with these headers.
async fn serve(path: &Path, method: Method, headers: HeaderMap) -> io::Result<Response<Body>> {
    let mut request = Request::new(Body::empty());
    (*request.method_mut(), *request.headers_mut()) = (method, headers);
    let mut response = ServeFile::new(path).with_buf_chunk_size(CHUNK).try_call(request).await?.map(Body::new);
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    // All text files here are UTF-8. Without a charset, a browser guesses another one.
    if let Some(kind) = kind.filter(|kind| kind.starts_with("text/") && !kind.contains("charset")) {
        let kind = value(format!("{kind}; charset=utf-8"));
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    Ok(response)
}

/// Returns the answer with several parts of a file. `head` holds the headers of the whole file.
fn several(path: &Path, head: &HeaderMap, parts: &[RangeInclusive<u64>], size: u64) -> Response<Body> {
    let boundary = random_id();
    let kind = head.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let opening = |part: &RangeInclusive<u64>| {
        let (first, last) = (part.start(), part.end());
        format!("\r\n--{boundary}\r\ncontent-type: {kind}\r\ncontent-range: bytes {first}-{last}/{size}\r\n\r\n")
    };
    let end = format!("\r\n--{boundary}--\r\n");
    let whole = parts.iter().map(|part| length(part).saturating_add(opening(part).len() as u64));
    let whole = whole.fold(end.len() as u64, u64::saturating_add);

    let same = head.get(header::ETAG).cloned();
    let pieces: Vec<Piece> = parts
        .iter()
        .map(|part| Piece { opening: opening(part), range: range_of(part), path: path.to_owned(), same: same.clone() })
        .collect();
    // The parts are read one after the other, so that one request has one open file.
    let body = stream::iter(pieces).then(Piece::read).try_flatten();
    let mut response = Response::new(Body::from_stream(body.chain(stream::once(ready(Ok(Bytes::from(end)))))));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let headers = response.headers_mut();
    for name in [header::ETAG, header::LAST_MODIFIED, header::ACCEPT_RANGES] {
        headers.extend(head.get(&name).cloned().map(|value| (name, value)));
    }
    headers.insert(header::CONTENT_TYPE, value(format!("multipart/byteranges; boundary={boundary}")));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(whole));
    response
}

/// One of several parts of a file.
struct Piece {
    opening: String,
    range: HeaderValue,
    path: PathBuf,
    /// The tag that the file must still have.
    same: Option<HeaderValue>,
}

impl Piece {
    async fn read(self) -> io::Result<impl futures::Stream<Item = io::Result<Bytes>>> {
        let mut headers = HeaderMap::from_iter([(header::RANGE, self.range)]);
        headers.extend(self.same.map(|tag| (header::IF_MATCH, tag)));
        let answer = serve(&self.path, Method::GET, headers).await?;
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            return Err(io::Error::other("the file has changed while it was read"));
        }
        let bytes = answer.into_body().into_data_stream().map_err(io::Error::other);
        Ok(stream::once(ready(Ok(Bytes::from(self.opening)))).chain(bytes))
    }
}

fn range_of(part: &RangeInclusive<u64>) -> HeaderValue {
    value(format!("bytes={}-{}", part.start(), part.end()))
}

/// Returns a header value. The text has to be visible ASCII.
fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const TEXT: &str = "0123456789\u{1f600}\n";

    struct Log(PathBuf);

    impl Log {
        fn named(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("oarlock-file-{}-{name}.log", std::process::id()));
            std::fs::write(&path, TEXT).unwrap();
            Self(path)
        }

        async fn ask(&self, method: Method, given: &[(&'static str, &str)]) -> (StatusCode, HeaderMap, String) {
            let mut request = Request::builder().method(method);
            for (name, value) in given {
                request = request.header(*name, *value);
            }
            let answer = file_answer(&self.0, request.body(Body::empty()).unwrap()).await.unwrap();
            let (head, body) = answer.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            (head.status, head.headers, String::from_utf8_lossy(&bytes).into_owned())
        }
    }

    impl Drop for Log {
        fn drop(&mut self) {
            let _gone = std::fs::remove_file(&self.0);
        }
    }

    fn own<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
        headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[tokio::test]
    async fn text_says_its_charset_and_a_head_has_the_headers_of_a_get() {
        let log = Log::named("head");
        let (status, got, body) = log.ask(Method::GET, &[]).await;
        assert_eq!(
            (status, own(&got, "content-type"), body.as_str()),
            (StatusCode::OK, "text/plain; charset=utf-8", TEXT)
        );
        let (status, head, body) = log.ask(Method::HEAD, &[("range", "bytes=0-3")]).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, ""), "a part of nothing is not asked for");
        assert_eq!(head, got);
        assert_eq!((own(&got, "content-length"), own(&got, "accept-ranges")), ("15", "bytes"));
    }

    #[tokio::test]
    async fn a_part_is_served_and_what_the_file_does_not_have_is_refused() {
        let log = Log::named("part");
        for (range, part, place) in [
            ("bytes=2-4", "234", "bytes 2-4/15"),
            ("BYTES=-1", "\n", "bytes 14-14/15"),
            ("bytes=-99", TEXT, "bytes 0-14/15"),
            ("bytes=9-99", "9\u{1f600}\n", "bytes 9-14/15"),
        ] {
            let (status, headers, body) = log.ask(Method::GET, &[("range", range)]).await;
            assert_eq!(
                (status, body.as_str(), own(&headers, "content-range")),
                (StatusCode::PARTIAL_CONTENT, part, place)
            );
        }
        let (status, headers, _) = log.ask(Method::GET, &[("range", "bytes=15-")]).await;
        assert_eq!((status.as_u16(), own(&headers, "content-range")), (416, "bytes */15"));
        for range in ["lines=0-1", "bytes=4-2", "bytes=x"] {
            let (status, _, body) = log.ask(Method::GET, &[("range", range)]).await;
            assert_eq!((status, body.as_str()), (StatusCode::OK, TEXT), "{range}");
        }
    }

    #[tokio::test]
    async fn several_parts_are_one_answer_of_the_length_that_it_says() {
        let log = Log::named("several");
        let (status, headers, body) = log.ask(Method::GET, &[("range", "bytes=0-1, 4-5,-1")]).await;
        assert_eq!(status, StatusCode::PARTIAL_CONTENT);
        assert_eq!(own(&headers, "content-length"), body.len().to_string());
        let boundary = own(&headers, "content-type").strip_prefix("multipart/byteranges; boundary=").unwrap();
        let parts: Vec<&str> = body.split(&format!("\r\n--{boundary}")).collect();
        let part = |range: &str, text: &str| {
            format!("\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-range: bytes {range}/15\r\n\r\n{text}")
        };
        assert_eq!(parts, ["", &part("0-1", "01"), &part("4-5", "45"), &part("14-14", "\n"), "--\r\n"]);
        assert!(!own(&headers, "etag").is_empty());
    }

    #[tokio::test]
    async fn conditions_are_those_of_the_rfc() {
        let log = Log::named("conditions");
        let (_, headers, _) = log.ask(Method::GET, &[]).await;
        let (tag, date) = (own(&headers, "etag").to_owned(), own(&headers, "last-modified").to_owned());
        let range = ("range", "bytes=0-0");
        for (given, status) in [
            (vec![("if-none-match", tag.as_str())], 304),
            (vec![("if-none-match", "\"other\"")], 200),
            (vec![("if-none-match", "\"other\""), ("if-modified-since", &date)], 200),
            (vec![("if-modified-since", &date)], 304),
            (vec![("if-match", "\"other\"")], 412),
            (vec![("if-unmodified-since", "Thu, 01 Jan 1970 00:00:00 GMT")], 412),
            (vec![range, ("if-none-match", &tag)], 304),
            (vec![range, ("if-range", &tag)], 206),
            (vec![range, ("if-range", &date)], 206),
            (vec![range, ("if-range", "\"other\"")], 200),
            (vec![range, ("if-range", "Thu, 01 Jan 1970 00:00:00 GMT")], 200),
            (vec![("range", "bytes=0-0,2-2"), ("if-range", "\"other\"")], 200),
            (vec![("range", "bytes=99-"), ("if-range", "\"other\"")], 200),
            (vec![("if-range", "\"other\"")], 200),
        ] {
            let (answered, _, body) = log.ask(Method::GET, &given).await;
            assert_eq!(answered.as_u16(), status, "{given:?}");
            assert_eq!(body.is_empty(), matches!(status, 304 | 412), "{given:?}");
        }
    }
}
