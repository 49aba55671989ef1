//! Orders, which select requests by their words and say what happens to them, and latches, which hold requests.
//!
//! For each request the first matching order counts. An order neither sends nor waits.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::faults::{Then, When};

/// An order: what happens to requests of this method with these words.
#[derive(Clone, Debug)]
pub struct Order {
    /// The method of the requests.
    pub method: Method,
    /// A text that the path or query must contain.
    pub part: String,
    /// A text that the body must contain.
    pub says: String,
    /// How many requests the order applies to. `None` means all.
    pub times: Option<usize>,
    /// The moment within the request. Nothing can be ordered after the reply.
    pub when: When,
    /// The effect on the request.
    pub then: Then,
}

impl Order {
    /// Returns an order for every matching request, before it is sent.
    #[must_use]
    pub fn all(method: Method, part: &str, then: Then) -> Self {
        Self { method, part: part.to_owned(), says: String::new(), times: None, when: When::BeforeSend, then }
    }

    /// Returns an order for only the next matching request, before it is sent.
    #[must_use]
    pub fn next(method: Method, part: &str, then: Then) -> Self {
        Self { times: Some(1), ..Self::all(method, part, then) }
    }

    /// Limits the order to requests whose body contains `says`.
    #[must_use]
    pub fn saying(self, says: &str) -> Self {
        Self { says: says.to_owned(), ..self }
    }

    /// Moves the order to the moment after the server has answered.
    #[must_use]
    pub fn after_commit(self) -> Self {
        Self { when: When::AfterCommit, ..self }
    }

    fn concerns(&self, request: &Request<Bytes>) -> bool {
        let uri = request.uri();
        let path = || uri.path_and_query().map_or(uri.path(), http::uri::PathAndQuery::as_str);
        let says = || self.says.is_empty() || String::from_utf8_lossy(request.body()).contains(&self.says);
        self.times != Some(0) && self.method == request.method() && path().contains(&self.part) && says()
    }
}

/// Holds requests until it is released.
#[derive(Clone, Debug)]
pub struct Latch {
    caught: Arc<watch::Sender<bool>>,
    open: Arc<watch::Sender<bool>>,
}

impl Default for Latch {
    fn default() -> Self {
        Self { caught: Arc::new(watch::Sender::new(false)), open: Arc::new(watch::Sender::new(false)) }
    }
}

impl Latch {
    /// Waits until the latch holds a request.
    pub async fn caught(&self) {
        // The sender lives in `self`, so it cannot be gone.
        let _ = self.caught.subscribe().wait_for(|caught| *caught).await;
    }

    /// Lets all held requests continue.
    pub fn release(&self) {
        self.open.send_replace(true);
    }

    pub(crate) async fn pass(&self) {
        self.caught.send_replace(true);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

/// The orders in force.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    list: Mutex<Vec<Order>>,
    /// The latches of all orders since the last [`Orders::lift`], used up or not.
    latches: Mutex<Vec<Latch>>,
    caught: Mutex<usize>,
}

impl Orders {
    pub(crate) fn add(&self, order: Order) {
        if let Then::Hold(latch) = &order.then {
            self.latches.lock().push(latch.clone());
        }
        self.list.lock().push(order);
    }

    /// Removes all orders, and releases the requests that they hold.
    pub(crate) fn lift(&self) {
        self.list.lock().clear();
        self.latches.lock().drain(..).for_each(|latch| latch.release());
    }

    /// Returns the number of requests that matched an order.
    pub(crate) fn caught(&self) -> usize {
        *self.caught.lock()
    }

    /// Returns what happens to this request, if an order matches it.
    pub(crate) fn of(&self, request: &Request<Bytes>) -> Option<(When, Then)> {
        let mut list = self.list.lock();
        let order = list.iter_mut().find(|order| order.concerns(request))?;
        order.times = order.times.map(|times| times.saturating_sub(1));
        *self.caught.lock() += 1;
        Some((order.when, order.then.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(part: &str, says: &str, times: Option<usize>, then: Then) -> Order {
        let (part, says) = (part.to_owned(), says.to_owned());
        Order { method: Method::PATCH, part, says, times, when: When::BeforeSend, then }
    }

    fn patch(path: &str, body: &'static str) -> Request<Bytes> {
        Request::patch(path).body(Bytes::from_static(body.as_bytes())).unwrap()
    }

    #[test]
    fn the_first_order_that_concerns_a_request_is_followed_as_often_as_it_says() {
        let orders = Orders::default();
        orders.add(order("/pods/a", "mark", Some(1), Then::DropConnection));
        orders.add(order("/pods/", "", None, Then::Repeat));
        let met = |path: &str, body| orders.of(&patch(path, body)).map(|(_, then)| format!("{then:?}"));
        assert_eq!(met("/pods/a", "a mark").as_deref(), Some("DropConnection"));
        assert_eq!(met("/pods/a", "a mark").as_deref(), Some("Repeat"));
        assert_eq!(met("/nodes/a", "a mark"), None);
        assert_eq!(orders.caught(), 2);
        orders.lift();
        assert_eq!(met("/pods/a", "a mark"), None);
    }

    #[tokio::test]
    async fn what_an_order_holds_goes_on_once_all_are_lifted_although_it_was_to_be_met_once() {
        let orders = Orders::default();
        orders.add(order("/pods/a", "", Some(1), Then::Hold(Latch::default())));
        let Some((_, Then::Hold(latch))) = orders.of(&patch("/pods/a", "")) else { panic!("it is held") };
        let held = tokio::spawn(async move { latch.pass().await });
        orders.lift();
        held.await.unwrap();
    }
}
