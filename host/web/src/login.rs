//! The login form. A login seals the viewer's token into a cookie, and the server forgets it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use maud::{DOCTYPE, html};
use oarlock_core::ops_job::refusal::{Code, OpsRefusal};
use oarlock_page::{JobQuery, LOGIN, LoginProblem, PageAddress, Shell, document, login_content, query_value};

use crate::answers::{html_answer, redirect, refused};
use crate::seal::{PageSession, Unsealed};
use crate::state::WebState;
use crate::viewer::{COOKIE_NAME, PageAdmission, check_own_site};

/// The most bytes of the form. A token has up to 16 KiB, and percent-encoding may triple them.
const FORM: usize = 64 * 1024;

/// Answers with the form.
pub(crate) async fn form(State(web): State<Arc<WebState>>, uri: Uri) -> Response<Body> {
    if web.admission == PageAdmission::Loopback {
        return redirect(&first_page().to_string());
    }
    let query = uri.query().unwrap_or_default();
    let problem = match query_value(query, "why").as_deref() {
        Some("expired") => Some(LoginProblem::Expired),
        Some("out") => Some(LoginProblem::LoggedOut),
        _ => None,
    };
    shown(&next(query), problem.as_ref(), StatusCode::OK)
}

/// Logs a viewer in with the token in the form.
pub(crate) async fn log_in(State(web): State<Arc<WebState>>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    if let Err(refusal) = check_own_site(&head.headers) {
        return refused(&refusal);
    }
    let Ok(body) = Limited::new(body, FORM).collect().await else {
        return refused(&OpsRefusal::new(Code::TooLarge, "the form is too large".to_owned()));
    };
    let form = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let (token, next) = (query_value(&form, "token").unwrap_or_default(), next(&form));
    match seal(&web, token.trim()).await {
        Ok(cookie) => with_cookie(redirect(&next.to_string()), &cookie),
        Err(problem) => {
            let status = match problem {
                LoginProblem::Unreachable(_) => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::UNAUTHORIZED,
            };
            shown(&next, Some(&problem), status)
        }
    }
}

/// Returns the cookie of a viewer with this token.
async fn seal(web: &WebState, token: &str) -> Result<String, LoginProblem> {
    let unreachable = |refusal: OpsRefusal| LoginProblem::Unreachable(refusal.message);
    web.rest.caller(token).await.map_err(|refusal| match refusal.code {
        Code::Unauthenticated => LoginProblem::Refused,
        _ => unreachable(refusal),
    })?;
    let keys = web.rest.keys().await.map_err(unreachable)?;
    let now = web.now();
    let session = PageSession::begin(token, web.rest.token_expires(token), now);
    let sealed = session.seal(&keys).map_err(|failed| match failed {
        Unsealed::TooLong => LoginProblem::TooLong,
        Unsealed::Failed => LoginProblem::Unreachable("There is no key for cookies yet.".to_owned()),
    })?;
    let seconds = session.until.saturating_sub(now);
    Ok(format!("{COOKIE_NAME}={sealed}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={seconds}"))
}

/// Logs a viewer out.
pub(crate) async fn log_out(headers: HeaderMap) -> Response<Body> {
    match check_own_site(&headers) {
        Err(refusal) => refused(&refusal),
        Ok(()) => {
            let gone = format!("{COOKIE_NAME}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0");
            with_cookie(redirect(&format!("{LOGIN}?why=out")), &gone)
        }
    }
}

/// Leads a browser without a session to the form, and back to its page after the login.
pub(crate) fn to_form(uri: &Uri, has_expired: bool) -> Response<Body> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("next", uri.path_and_query().map_or("", |whole| whole.as_str()));
    if has_expired {
        query.append_pair("why", "expired");
    }
    redirect(&format!("{LOGIN}?{}", query.finish()))
}

/// Returns a document that loads its address once more. After a link of another site, a browser sends the cookie only then.
pub(crate) fn once_more() -> Response<Body> {
    let document = html! { (DOCTYPE) html lang="en" { head { meta http-equiv="refresh" content="0"; title { "Oarlock" } } body {} } };
    html_answer(StatusCode::OK, document.into_string())
}

fn shown(next: &PageAddress, problem: Option<&LoginProblem>, status: StatusCode) -> Response<Body> {
    html_answer(status, document(&login_content(next, problem), &Shell::default()))
}

fn with_cookie(mut answer: Response<Body>, cookie: &str) -> Response<Body> {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    answer
}

/// Returns the page after the login. A form could name the address of another site, so only a page counts.
fn next(pairs: &str) -> PageAddress {
    query_value(pairs, "next").and_then(|address| PageAddress::parse(&address)).unwrap_or_else(first_page)
}

fn first_page() -> PageAddress {
    PageAddress::Jobs(JobQuery::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_a_page_and_never_to_another_site() {
        let of = |address: &str| {
            let query = form_urlencoded::Serializer::new(String::new()).append_pair("next", address).finish();
            next(&query).to_string()
        };
        assert_eq!(of("/ui/jf/team/web"), "/ui/jf/team/web");
        for other in [
            "https://evil.example",
            "//evil.example/ui/",
            "/\\evil.example",
            "javascript:alert(1)",
            "/api/v1/opsjobs",
            "",
        ] {
            assert_eq!(of(other), "/ui/", "{other}");
        }
    }

    #[test]
    fn the_form_knows_the_page_from_which_a_browser_came() {
        let uri: Uri = "/ui/?kind=jf&q=a%26b".parse().unwrap();
        let answer = to_form(&uri, true);
        let to = answer.headers()[header::LOCATION].to_str().unwrap();
        let query = to.strip_prefix("/ui/login?").unwrap();
        assert_eq!(next(query).to_string(), "/ui/?kind=jf&q=a%26b");
        assert_eq!(query_value(query, "why").as_deref(), Some("expired"));
    }
}
