//! Finds out who looks at a page: the owner of the token in the cookie, or anybody on a development machine.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use http::header::{COOKIE, HOST, ORIGIN};
use http::{HeaderMap, HeaderName};
use oarlock_core::ops_job::access::Access;
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_rest::{Caller, Rest};

use crate::seal::PageSession;

/// The cookie of a session. A browser accepts this prefix only from HTTPS or its own machine, for this host and for all paths.
pub(crate) const COOKIE_NAME: &str = "__Host-oarlock";
/// The header in which a browser says which site made a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The header in which a browser says whether it opens a page or loads a part of one.
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The people that may see the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAdmission {
    /// Callers who log in with a token. Each sees the objects that they may read with kubectl.
    Login,
    /// Anybody on this machine. Each sees everything.
    Loopback,
}

/// The person that looks at a page.
#[derive(Clone)]
pub(crate) struct PageViewer {
    /// The authenticated caller. `None` on a development machine, where everybody sees everything.
    pub(crate) caller: Option<Arc<Caller>>,
    /// The end of the session, in seconds since 1970.
    pub(crate) until: i64,
    token: String,
}

/// The reason why a request has no viewer.
#[derive(Debug)]
pub(crate) enum NoViewer {
    /// The browser has no session.
    Stranger,
    /// The session has ended, for this reason.
    Expired(String),
    /// The request is refused.
    Refused(OpsRefusal),
}

impl PageViewer {
    /// Returns the viewer with this session, if its token is still valid.
    async fn of(rest: &Rest, session: PageSession) -> Result<Self, NoViewer> {
        let caller = rest.caller(&session.token).await.map_err(|refusal| match refusal.code {
            Code::Unauthenticated => NoViewer::Expired(format!("The session has ended: {}.", refusal.message)),
            _ => NoViewer::Refused(refusal),
        })?;
        Ok(Self { caller: Some(caller), until: session.until, token: session.token })
    }

    /// Checks that the token is still valid. The answer may be a minute old.
    pub(crate) async fn check(&self, rest: &Rest) -> Result<(), NoViewer> {
        match &self.caller {
            None => Ok(()),
            Some(_) => Self::of(rest, PageSession { token: self.token.clone(), until: self.until }).await.map(drop),
        }
    }

    /// Returns true if the viewer has this right. The answer may be 10 s old.
    pub(crate) async fn has(&self, rest: &Rest, access: &Access) -> Result<bool, OpsRefusal> {
        match &self.caller {
            Some(caller) => rest.has(caller, access).await,
            None => Ok(true),
        }
    }

    /// Returns the name by which the page and the limits know the viewer. Empty on a development machine.
    pub(crate) fn name(&self) -> &str {
        self.caller.as_ref().map_or("", |caller| &caller.name)
    }
}

/// Returns the viewer of a request with these headers, at this second.
pub(crate) async fn viewer(
    rest: &Rest,
    admission: PageAdmission,
    headers: &HeaderMap,
    now: i64,
) -> Result<PageViewer, NoViewer> {
    if admission == PageAdmission::Loopback {
        check_loopback(headers).map_err(NoViewer::Refused)?;
        return Ok(PageViewer { caller: None, until: i64::MAX, token: String::new() });
    }
    let Some(cookie) = cookie(headers) else { return Err(NoViewer::Stranger) };
    let keys = rest.keys().await.map_err(NoViewer::Refused)?;
    let ended = || NoViewer::Expired("The session has ended. Log in again.".to_owned());
    let session = PageSession::open(cookie, &keys, now).ok_or_else(ended)?;
    PageViewer::of(rest, session).await
}

/// Returns the value of the session's cookie. A browser never sends two with this name.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let pairs = headers.get_all(COOKIE).iter().filter_map(|all| all.to_str().ok()).flat_map(|all| all.split(';'));
    pairs.filter_map(|pair| pair.trim().split_once('=')).find(|(name, _)| *name == COOKIE_NAME).map(|(_, value)| value)
}

/// Refuses requests that a page of another site may have caused. Such a page can give its own name the address of this machine.
fn check_loopback(headers: &HeaderMap) -> Result<(), OpsRefusal> {
    if is_loopback(text(headers, &HOST)) {
        return check_origin(headers);
    }
    let message = "the page is only for this machine: open it as http://127.0.0.1 or http://localhost".to_owned();
    Err(OpsRefusal::new(Code::Forbidden, message))
}

/// Refuses a POST that a page of another site sent.
pub(crate) fn check_own_site(headers: &HeaderMap) -> Result<(), OpsRefusal> {
    match text(headers, &FETCH_SITE) {
        "" | "none" | "same-origin" => check_origin(headers),
        _ => Err(of_other_site()),
    }
}

/// Refuses a request whose Origin is not this host.
fn check_origin(headers: &HeaderMap) -> Result<(), OpsRefusal> {
    let (origin, host) = (text(headers, &ORIGIN), text(headers, &HOST));
    let is_own = origin.split_once("://").is_some_and(|(_, name)| name.eq_ignore_ascii_case(host));
    if origin.is_empty() || is_own { Ok(()) } else { Err(of_other_site()) }
}

/// Returns true if a browser follows a link of another site. It then sends no cookie, although it may have one.
pub(crate) fn comes_from_elsewhere(headers: &HeaderMap) -> bool {
    matches!(text(headers, &FETCH_SITE), "cross-site" | "same-site") && text(headers, &FETCH_MODE) == "navigate"
}

fn of_other_site() -> OpsRefusal {
    OpsRefusal::new(Code::Forbidden, "another site sent the request".to_owned())
}

fn text<'a>(headers: &'a HeaderMap, header: &HeaderName) -> &'a str {
    headers.get(header).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Returns true for a Host header that names this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || bare.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn the_cookie_of_the_session_is_found_among_others() {
        let of = |value: &str| cookie(&headers(&[(COOKIE, value)])).map(str::to_owned);
        assert_eq!(of("a=b; __Host-oarlock=x.y; c=d").as_deref(), Some("x.y"));
        assert_eq!(of("__Host-oarlock=").as_deref(), Some(""));
        for none in ["", "a=b", "X__Host-oarlock=x", "__host-oarlock=x", "__Host-oarlock"] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn a_development_machine_shows_its_pages_only_by_its_own_name() {
        for host in ["127.0.0.1:8090", "localhost", "LOCALHOST:1", "[::1]:8090", "127.8.8.8"] {
            assert!(check_loopback(&headers(&[(HOST, host)])).is_ok(), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8090", "10.0.0.1", "", "[::2]", "127.0.0.1.nip.io"] {
            assert!(check_loopback(&headers(&[(HOST, host)])).is_err(), "{host}");
        }
    }

    #[test]
    fn a_request_that_another_site_sent_is_refused() {
        let of = |origin: &str, site: &str| {
            check_own_site(&headers(&[(HOST, "ops.example:8443"), (ORIGIN, origin), (FETCH_SITE, site)])).is_ok()
        };
        assert!(of("https://ops.example:8443", "same-origin"));
        for (origin, site) in [
            ("https://evil.example", "cross-site"),
            ("https://ops.example", "same-origin"),
            ("null", "same-origin"),
            ("https://ops.example:8443", "cross-site"),
            ("https://ops.example:8443", "same-site"),
        ] {
            assert!(!of(origin, site), "{origin} {site}");
        }
        assert!(check_own_site(&headers(&[(HOST, "ops.example")])).is_ok(), "an old browser sends neither");
    }
}
