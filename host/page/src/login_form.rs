//! The login form, and the pages that say why there is nothing to see.

use maud::html;

use crate::address::{LOGIN, ObjectKind, PageAddress, ROOT};
use crate::page_content::PageContent;
use crate::text_html::{line, message};

/// The reason for which the login form is shown again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginProblem {
    /// The API server does not accept the token, or the token is for another audience.
    Refused,
    /// The token or the login has expired.
    Expired,
    /// The token is too long for a cookie.
    TooLong,
    /// The server cannot ask the API server about the token. The text is the cause.
    Unreachable(String),
    /// The viewer has logged out.
    LoggedOut,
}

impl LoginProblem {
    fn sentence(&self) -> &'static str {
        match self {
            Self::Refused => "The API server does not accept this token. Create a new one for the audience oarlock.",
            Self::Expired => "Your login has expired. Create a new token, and log in again.",
            Self::TooLong => "The token is too long for a cookie. Use a token of a ServiceAccount.",
            Self::Unreachable(_) => {
                "The server cannot check the token, because it does not reach the API server. Try again."
            }
            Self::LoggedOut => "You are logged out.",
        }
    }
}

/// Returns the login form. It sends the fields `token` and `next` as a form to [`LOGIN`]. `next` is the page after the login.
pub fn login_content(next: &PageAddress, problem: Option<&LoginProblem>) -> PageContent {
    let html = html! {
        section id="login" class="panel login" aria-labelledby="login-title" {
            h1 id="login-title" { "Log in" }
            @if let Some(problem) = problem {
                p class="notice" role="alert" {
                    (problem.sentence())
                    @if let LoginProblem::Unreachable(cause) = problem { " " (message(cause)) }
                }
            }
            form method="post" action=(LOGIN) {
                input type="hidden" name="next" value=(next) {}
                label for="token" { "Token" }
                input id="token" type="password" name="token" required autocomplete="off" spellcheck="false" aria-describedby="token-help" {}
                button type="submit" { "Log in" }
            }
            div id="token-help" {
                p { "This command creates a token for one hour. You see what its account may see." }
                div class="command" {
                    code { "kubectl create token ACCOUNT --audience oarlock --duration 1h" }
                    button type="button" class="copy" data-copy aria-label="Copy: create a token" { "Copy" }
                }
            }
        }
    };
    PageContent::new("Log in").with("login", html)
}

/// The reason why a page has no content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageRefusal {
    /// The address is no page, or the object does not exist or is deleted. The text names the object.
    NotFound(String),
    /// The viewer lacks a right. The texts are the right, such as `list operationjobs.apps.kusionstack.io`, and the namespace, which is
    /// empty for the whole cluster.
    Forbidden {
        /// The verb and the resource.
        right: String,
        /// The namespace, or an empty text.
        namespace: String,
    },
    /// The server has not listed the objects of this kind since it began, so that it does not know whether an object exists.
    Unlisted(ObjectKind),
    /// The object exists, but the server cannot show it. The text is the cause.
    Unreadable(String),
    /// The server does not reach the API server. The text is the cause.
    Outage(String),
    /// Too many requests wait.
    Busy,
    /// The server does not take the request. The text is the cause.
    Refused(String),
}

impl PageRefusal {
    fn title(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "Not found",
            Self::Forbidden { .. } => "Forbidden",
            Self::Unlisted(_) => "Not ready yet",
            Self::Unreadable(_) => "Not readable",
            Self::Outage(_) => "The cluster does not answer",
            Self::Busy => "Too many requests",
            Self::Refused(_) => "Refused",
        }
    }
}

/// Returns the page for a refusal.
pub fn refusal_content(refusal: PageRefusal) -> PageContent {
    let html = html! {
        section id="refusal" class="panel empty" aria-labelledby="refusal-title" {
            h1 id="refusal-title" { (refusal.title()) }
            @match &refusal {
                PageRefusal::NotFound(what) => {
                    p { (line(what, 200)) " does not exist. The host deletes a job some time after its end." }
                },
                PageRefusal::Forbidden { right, namespace } => {
                    p {
                        "Your account lacks the right to " strong { (line(right, 200)) }
                        @if namespace.is_empty() { " in the cluster." } @else { " in the namespace " strong { (line(namespace, 253)) } "." }
                    }
                    p { "Ask an admin for this right, or name a namespace in the filters in which you have it." }
                },
                PageRefusal::Unlisted(kind) => {
                    p { "The server has not read the " (kind.word()) "s of the cluster yet. The page appears by itself once it has." }
                },
                PageRefusal::Unreadable(cause) => { p { (message(cause)) } },
                PageRefusal::Outage(cause) => {
                    p { "The server does not reach the API server. It asks again." }
                    p { (message(cause)) }
                },
                PageRefusal::Refused(cause) => { p { "The server does not take this request: " (message(cause)) } },
                PageRefusal::Busy => { p { "The server has too many requests of yours. Wait, or close some tabs." } },
            }
            p { a href=(ROOT) { "All jobs" } }
        }
    };
    PageContent::new(refusal.title()).with("refusal", html).refused(refusal)
}
