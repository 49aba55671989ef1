//! Refuses requests that a web page makes through the browser of the user who serves the API on this machine.
//!
//! The API does not authenticate there. A page of another site can reach it through its own host name if that name resolves to this
//! machine. The `Host` header shows this. The page can also use the address directly, and then the `Origin` header shows the page.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, Request, header, uri::Authority};

use crate::server::status::Refusal;

/// Returns a refusal if the request addresses neither `own` nor this machine, or comes from a page of another origin.
pub(crate) fn refusal<B>(request: &Request<B>, own: SocketAddr) -> Option<Refusal> {
    let named = texts(request.headers(), header::HOST);
    let hosts: Vec<String> = request.uri().authority().map(Authority::to_string).into_iter().chain(named).collect();
    let why = if hosts.is_empty() || !hosts.iter().all(|host| is_local(host, own.ip())) {
        format!("it is for {:?}, which is no address of this machine", hosts.join(", "))
    } else {
        let origins = texts(request.headers(), header::ORIGIN);
        let is_foreign = |origin: &String| {
            let of_page = origin.strip_prefix("http://");
            !of_page.is_some_and(|page| hosts.iter().all(|host| host.eq_ignore_ascii_case(page)))
        };
        format!("it comes from a page of {:?}", origins.into_iter().find(is_foreign)?)
    };
    let message = format!("this API serves its own machine, and refused the request: {why}; use http://{own}");
    Some(Refusal::plain(403, "Forbidden", message))
}

/// Returns all values of a header. A value that is not text becomes empty, which matches no address.
fn texts(headers: &HeaderMap, name: header::HeaderName) -> Vec<String> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default().to_owned()).collect()
}

/// Returns true for `localhost`, the loopback addresses and `own`, with any port.
fn is_local(host: &str, own: IpAddr) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_own = |address: IpAddr| address.is_loopback() || address == own;
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_own)
}
