//! Seeded delays, as a network and a busy server cause them. Requests overlap and overtake each other. Each watch lags by its own
//! delay, so clients learn nothing at once, and changes of different kinds arrive in any order.

use std::{sync::Arc, time::Duration};

use futures::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use parking_lot::Mutex;

use crate::{random::Random, server::reply::ApiBody};

/// The longest delays between a client and the server. The seed determines every single delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// Seed of the delays. The same seed and the same requests give the same delays.
    pub seed: u64,
    /// The longest delay of a request on the way to the server, and of its response on the way back.
    pub request: Duration,
    /// The longest delay of a watch event after its change.
    pub watch: Duration,
}

/// The delays of one client. Clones share one random generator.
#[derive(Debug, Clone)]
pub(crate) struct Delayed {
    delays: Delays,
    random: Arc<Mutex<Random>>,
}

impl Delayed {
    pub(crate) fn new(delays: Delays) -> Self {
        Self { delays, random: Arc::new(Mutex::new(Random::seeded(delays.seed))) }
    }

    fn draw(&self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.random.lock().up_to(most))
    }

    /// Waits for the delay of one direction.
    pub(crate) async fn way(&self) {
        tokio::time::sleep(self.draw(self.delays.request)).await;
    }

    /// Delays the events of a watch response. Returns any other response unchanged.
    pub(crate) fn lagging(&self, watches: bool, response: Response<ApiBody>) -> Response<ApiBody> {
        if watches { response.map(|body| self.clone().stream(body)) } else { response }
    }

    fn stream(self, body: ApiBody) -> ApiBody {
        let frames = stream::unfold((self, body), |(delayed, mut body)| async {
            let frame = body.frame().await?;
            tokio::time::sleep(delayed.draw(delayed.delays.watch)).await;
            Some((frame, (delayed, body)))
        });
        StreamBody::new(frames).boxed_unsync()
    }
}

/// Returns true if the request starts a watch.
pub(crate) fn watches<B>(request: &Request<B>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::Delays;
    use crate::{Cluster, Options};

    fn delays(seed: u64) -> Delays {
        Delays { seed, request: Duration::from_millis(40), watch: Duration::from_millis(900) }
    }

    fn create(name: &str) -> http::Request<Vec<u8>> {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        http::Request::post("/api/v1/namespaces/default/configmaps").body(body.to_string().into_bytes()).unwrap()
    }

    /// Creates twenty objects at once, and returns their names in the order in which they were stored.
    async fn stored(seed: u64) -> Vec<String> {
        let cluster = Cluster::new(Options::default());
        let client = kube::Client::new(cluster.delayed(delays(seed)), "default");
        let all = (0..20).map(|number| {
            let client = client.clone();
            async move { client.request::<Value>(create(&format!("c{number}"))).await.unwrap() }
        });
        let mut made = futures::future::join_all(all).await;
        made.sort_by_key(|object| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap());
        made.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_overtake_each_other_in_an_order_that_belongs_to_the_seed() {
        let sent: Vec<String> = (0..20).map(|number| format!("c{number}")).collect();
        let (one, other) = (stored(1).await, stored(2).await);
        assert_ne!(one, sent);
        assert_ne!(one, other);
        assert_eq!(one, stored(1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_shows_a_change_later_and_a_client_without_delays_sees_it_at_once() {
        use futures::{AsyncBufReadExt as _, StreamExt as _};
        let cluster = Cluster::new(Options::default());
        let slow = kube::Client::new(cluster.delayed(delays(3)), "default");
        let quick = kube::Client::new(cluster.service(), "default");
        let watch = http::Request::get("/api/v1/namespaces/default/configmaps?watch=true").body(Vec::new()).unwrap();
        let mut lines = slow.request_stream(watch).await.unwrap().lines();
        quick.request::<Value>(create("a")).await.unwrap();
        let stored = Instant::now();
        let line = lines.next().await.unwrap().unwrap();
        assert!(line.contains("\"a\""), "{line}");
        assert!(stored.elapsed() > Duration::ZERO && stored.elapsed() <= Duration::from_millis(900));
    }
}
