//! The document around a content: head, navigation, connection state, login state.

use maud::{Markup, html};

use crate::address::{JobQuery, LOGOUT, ObjectKind, PLUGINS, PageAddress, ROOT, STREAM};
use crate::asset::ASSETS;
use crate::mark::definitions;
use crate::page_content::{PageContent, html_document};
use crate::text_html::name;

/// The value of the header `Content-Security-Policy` of every answer of the page.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The surroundings of a content.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shell<'a> {
    /// The address of the page, if the page changes with the cluster. The script then subscribes to it. A login form and a refusal have
    /// none.
    pub live: Option<&'a PageAddress>,
    /// The name of the viewer, with a button to log out. Absent without a login.
    pub viewer: Option<&'a str>,
    /// A sentence about the whole server, such as that no host leads.
    pub warning: Option<&'a str>,
}

/// Returns the whole document. It loads nothing but the files of [`assets`](crate::assets()).
pub fn document(content: &PageContent, shell: &Shell<'_>) -> String {
    let files = &*ASSETS;
    let live = shell.live.map(ToString::to_string);
    let head = html! {
        meta charset="utf-8";
        meta name="viewport" content="width=device-width, initial-scale=1";
        meta name="color-scheme" content="light dark";
        meta name="referrer" content="same-origin";
        title { (content.title()) " - Oarlock" }
        link rel="icon" href=(files.icon.path);
        link rel="stylesheet" href=(files.style.path);
        script src=(files.morph.path) defer {}
        script src=(files.page.path) defer data-stream-script=(files.stream.path) data-stream=(STREAM) data-of=[live] {}
    };
    let body = html! {
        a class="skip" href="#main" { "Skip to the content" }
        (definitions())
        (top(shell))
        @if let Some(warning) = shell.warning { p class="notice warning" role="alert" { (warning) } }
        (content.main())
    };
    html_document(&head, &body)
}

fn top(shell: &Shell<'_>) -> Markup {
    let kind = shell.live.and_then(PageAddress::kind);
    let is_list = matches!(shell.live, Some(PageAddress::Jobs(query)) if query.kind.is_none());
    let is_plugins = matches!(shell.live, Some(PageAddress::Plugins));
    let current = |is_current: bool| is_current.then_some("page");
    // The tabs of a list keep its other filters.
    let filters = match shell.live {
        Some(PageAddress::Jobs(query)) => JobQuery { skip: 0, ..query.clone() },
        _ => JobQuery::default(),
    };
    let link = |kind| PageAddress::Jobs(JobQuery { kind, ..filters.clone() }).to_string();
    html! {
        header class="top" {
            a class="brand" href=(ROOT) { "Oarlock" }
            nav aria-label="Kinds" {
                a href=(link(None)) aria-current=[current(is_list)] { "All" }
                @for known in ObjectKind::ALL { a href=(link(Some(known))) aria-current=[current(kind == Some(known))] { (known.word()) "s" } }
                a href=(PLUGINS) aria-current=[current(is_plugins)] { "Plugins" }
            }
            p id="live" class="live" role="status" data-state="off" {
                @if shell.live.is_some() { "Not live: reload the page for news" }
            }
            @if let Some(viewer) = shell.viewer {
                form class="viewer" method="post" action=(LOGOUT) { span { (name(viewer)) } button type="submit" { "Log out" } }
            }
        }
    }
}
