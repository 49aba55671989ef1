//! The bench of the REST API of OpsJobs: the times of its requests, beside a handler that answers the same bytes, and beside
//! hostile clients.
//!
//! It measures creates, and reads while the jobs begin and after. It also measures reads while other clients hold connections, send
//! slowly or send invalid tokens.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::routing::get;
use clap::Args;
use futures::stream::{self, FuturesUnordered, StreamExt as _, TryStreamExt as _};
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DynamicObject, PostParams};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use oarlock_support::children::Child;
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::arguments::Common;
use crate::children::binary;
use crate::goals::Goal;
use crate::history::{Filled, Store};
use crate::ops_objects::resource;
use crate::setup::shown_beside;
use crate::spread::{quantile, round};
use crate::usage::rss_kib;

/// Creates in flight.
const IN_FLIGHT: usize = 8;
/// Reads per second; `CREATES` is the number of paced creates per second.
const READS: u64 = 30;
const CREATES: u64 = 50;
/// Connections that stay idle (`IDLE`), send a byte now and then (`SLOW`), and send headers without end (`FLOODS`).
const IDLE: usize = 1_000;
const SLOW: usize = 100;
const FLOODS: usize = 20;
/// Clients that send invalid tokens.
const JUNK: usize = 20;
const BEGUN_WITHIN: Duration = Duration::from_secs(120);
const AT_REST_WITHIN: Duration = Duration::from_secs(300);

const GOALS: [Goal; 14] = [
    Goal {
        figure: "/create/aboveApiServerP99Ms",
        name: "create at 50 a second, above the API server's own time, p99, ms",
        goal: "at most 20",
    },
    Goal { figure: "/create/perSecond", name: "creates a second, 8 in flight", goal: "at least 50" },
    Goal { figure: "/create/inFlightP99Ms", name: "the time of one of these, p99, ms", goal: "told" },
    Goal { figure: "/get/p99Ms", name: "read of a live job at 30 a second, p99, ms", goal: "at most 10" },
    Goal {
        figure: "/get/besideWorkP99Ms",
        name: "the same while the jobs that were just made begin, ms",
        goal: "told",
    },
    Goal { figure: "/get/ofBareHandler", name: "the same, of a handler that answers the same bytes", goal: "told" },
    Goal {
        figure: "/troubled/ofCalm",
        name: "reads beside slow, flooding and idle connections, p99 of calm ones",
        goal: "at most 1.4",
    },
    Goal {
        figure: "/gone/listP99Ms",
        name: "lists of 100 by an exact filter, of all rows, p99, ms",
        goal: "at most 50",
    },
    Goal { figure: "/gone/ofBareHandler", name: "the same, of a handler that answers the same bytes", goal: "told" },
    Goal { figure: "/gone/partP99Ms", name: "lists by a part of a name, p99, ms", goal: "at most 300" },
    Goal { figure: "/gone/readP99Ms", name: "reads of a job that is gone, p99, ms", goal: "at most 10" },
    Goal { figure: "/process/readyMs", name: "from its start until it is ready, ms", goal: "at most 5,000" },
    Goal { figure: "/process/memoryMib", name: "its memory with rows and live jobs, MiB", goal: "at most 150" },
    Goal { figure: "/junk/p99Ms", name: "reads beside a flood of tokens that are none, p99, ms", goal: "at most 200" },
];

const NOTES: &str = "\
A process of `oarlock dev` on this machine, and clients in this one. create: each for a node of its own, 50 a second, whose times count
from when a request was due; aboveApiServer: the difference to the same objects created at the API server itself at the same rate;
inFlight: as many as go, 8 in flight. get: an open load as well, when all jobs wait for their nodes. troubled: beside 1,000 idle connections, 100 that send a byte of their body a second, and 20 that send headers without end,
each from an address of its own.
gone: beside one another, 18 lists of 100 a second by type and phase, 3 by a part of a name, and 9 reads of a job, of a history of --rows jobs that are gone.
junk: beside 20 clients that send well-formed tokens that nobody signed, one after the other.";

/// The options of the `rest` bench.
#[derive(Args, Clone, Debug)]
pub(crate) struct RestBench {
    /// Number of jobs that are created in each round
    #[arg(long, default_value = "500", value_parser = clap::value_parser!(u32).range(10..=2_000))]
    pub(crate) targets: u32,
    /// Seconds of each load of reads
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u64).range(2..=600))]
    pub(crate) seconds: u64,
    /// Number of rounds
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Number of jobs in the history that are gone
    #[arg(long, default_value = "100000", value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub(crate) rows: u32,
    /// The store of the history
    #[arg(long, value_enum, default_value = "sqlite")]
    pub(crate) history: Store,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Runs the bench, and prints each figure beside its goal.
///
/// # Errors
/// If the host does not run, or refuses a request.
pub(crate) async fn run(asked: &RestBench, components: &Path) -> anyhow::Result<Value> {
    let mut rounds = Vec::new();
    for number in 1..=asked.rounds {
        let served = Served::start(components, asked).await?;
        let figures = served.measure(asked).await?;
        println!("round {number}: {figures}");
        rounds.push(figures);
    }
    Ok(shown_beside(&rounds, &GOALS, NOTES))
}

/// A process that serves the API, and clients of the API.
struct Served {
    child: Child,
    folder: PathBuf,
    filled: Filled,
    ready: Duration,
    address: SocketAddr,
    token: String,
    admin: Client,
    rest: Client,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

impl Served {
    async fn start(components: &Path, asked: &RestBench) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("oarlock-bench-rest-{}", std::process::id()));
        let plugins = folder.join("plugins");
        std::fs::create_dir_all(&plugins)?;
        for name in ["reboot.wasm", "preflight.wasm"] {
            std::fs::copy(components.join(name), plugins.join(name)).with_context(|| format!("there is no {name}"))?;
        }
        let filled = Filled::of(asked.history, asked.rows as usize, &folder).await?;
        let (kubeconfig, token) = (folder.join("kubeconfig"), folder.join("token"));
        let mut command = std::process::Command::new(binary()?);
        command.args([
            "dev",
            "--grant-all",
            "--rest",
            "127.0.0.1:0",
            "--read-rate",
            "100000",
            "--write-rate",
            "100000",
        ]);
        command
            .arg("--plugins")
            .arg(&plugins)
            .arg("--kubeconfig-out")
            .arg(&kubeconfig)
            .arg("--rest-token-out")
            .arg(&token)
            .env("OARLOCK_HISTORY", &filled.address);
        let began = Instant::now();
        let mut child = Child::spawn("oarlock dev", command, folder.join("log"))?;
        let deadline = Instant::now() + BEGUN_WITHIN;
        let url = loop {
            let log = child.tail(100);
            if let Some(url) =
                log.split_once("OpsJobs by REST are served at ").and_then(|(_, rest)| rest.split(',').next())
            {
                break url.to_owned();
            }
            ensure!(child.ended()?.is_none() && Instant::now() < deadline, "the host does not begin: {log}");
            sleep(Duration::from_millis(50)).await;
        };
        let token = std::fs::read_to_string(token)?;
        let file = Kubeconfig::read_from(&kubeconfig)?;
        let admin = Client::try_from(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)?;
        let mut config = Config::new(url.parse()?);
        config.default_retry = false;
        let (address, rest) = (url.trim_start_matches("http://").parse()?, Client::try_from(config)?);
        loop {
            let answer = rest.send(Request::get("/readyz").body(Body::empty())?).await?;
            if answer.status() == 200 {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { child, folder, filled, ready: began.elapsed(), address, token, admin, rest })
    }

    async fn measure(&self, asked: &RestBench) -> anyhow::Result<Value> {
        let count = asked.targets as usize;
        let nodes = self.nodes(3 * count).await?;
        self.until_served(&nodes).await?;
        let (for_server, others) = nodes.split_at(count);
        let (for_rest, for_flight) = others.split_at(count);
        let server = paced(CREATES, for_server, |node| self.create_at_server(node)).await?;
        let paced = paced(CREATES, for_rest, |node| self.create(node)).await?;
        let began = Instant::now();
        let in_flight: Vec<f64> = stream::iter(for_flight)
            .map(|node| async move {
                let began = Instant::now();
                self.create(node.clone()).await?;
                anyhow::Ok(millis(began))
            })
            .buffer_unordered(IN_FLIGHT)
            .try_collect()
            .await?;
        let per_second = in_flight.len() as f64 / began.elapsed().as_secs_f64();
        let seconds = asked.seconds;
        let path = format!("/api/v1/opsjobs/{}", self.newest().await?);
        let beside_work = self.reads(&path, seconds).await?;
        self.until_at_rest().await?;
        let calm = self.reads(&path, seconds).await?;
        let bare = self.bare(&path, seconds).await?;
        let troubled = self.troubled(&path, seconds).await?;
        let junk = self.beside_junk(&path, seconds).await?;
        let gone = self.gone(seconds).await?;
        let memory = rss_kib(self.child.id())?;
        let p99 = |times: &[f64]| quantile(times, 0.99).unwrap_or_default();
        let figures = json!({
            "create": {"p99Ms": round(p99(&paced)), "apiServerP99Ms": round(p99(&server)),
                "aboveApiServerP99Ms": round(p99(&paced) - p99(&server)), "perSecond": round(per_second),
                "inFlightP99Ms": round(p99(&in_flight))},
            "get": {"p99Ms": round(p99(&calm)), "besideWorkP99Ms": round(p99(&beside_work)), "bareP99Ms": round(p99(&bare)),
                "ofBareHandler": round(p99(&calm) / p99(&bare))},
            "troubled": {"p99Ms": round(p99(&troubled)), "ofCalm": round(p99(&troubled) / p99(&calm))},
            "junk": {"p99Ms": round(p99(&junk))},
            "gone": gone,
            "process": {"readyMs": round(self.ready.as_secs_f64() * 1_000.0), "memoryMib": memory / 1_024},
        });
        Ok(figures)
    }

    /// Creates Ready nodes on which nothing ever happens.
    async fn nodes(&self, count: usize) -> anyhow::Result<Vec<(String, String)>> {
        let api: Api<Node> = Api::all(self.admin.clone());
        let made = stream::iter(0..count).map(|index| {
            let api = api.clone();
            async move {
                let name = format!("still-{index:04}");
                let status = json!({"conditions": [{"type": "Ready", "status": "True", "reason": "Still", "message": "",
                    "lastHeartbeatTime": null, "lastTransitionTime": null}]});
                let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status});
                let node = api.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
                anyhow::Ok((name, node.metadata.uid.unwrap_or_default()))
            }
        });
        made.buffer_unordered(IN_FLIGHT).try_collect().await
    }

    async fn until_served(&self, nodes: &[(String, String)]) -> anyhow::Result<()> {
        let (node, _) = nodes.first().context("there are nodes")?;
        let deadline = Instant::now() + BEGUN_WITHIN;
        loop {
            let (status, body) = self.post("/api/v1/opsjobs?dryRun=All", &reboot(node)).await?;
            if status == 200 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "reboot is not served: {status} {body}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Creates a job at the API server itself.
    async fn create_at_server(&self, (name, uid): (String, String)) -> anyhow::Result<()> {
        let resource = resource("OpsJob");
        let api: Api<DynamicObject> = Api::all_with(self.admin.clone(), &resource);
        let spec = json!({"type": "reboot", "jobName": "direct", "inputs": [{"name": "node", "value": name}],
            "targets": [{"name": name, "uid": uid}]});
        api.create(&PostParams::default(), &DynamicObject::new(&name, &resource).data(json!({ "spec": spec }))).await?;
        Ok(())
    }

    async fn create(&self, (node, _): (String, String)) -> anyhow::Result<()> {
        let (status, body) = self.post("/api/v1/opsjobs", &reboot(&node)).await?;
        ensure!(status == 200, "{status} {body}");
        Ok(())
    }

    async fn newest(&self) -> anyhow::Result<String> {
        let list = self.get("/api/v1/opsjobs?limit=1").await?;
        let id = list.pointer("/items/0/jobId").and_then(Value::as_str).context("a list of jobs has none")?;
        Ok(id.to_owned())
    }

    /// Waits until all jobs have begun and wait for their nodes, on which nothing happens.
    async fn until_at_rest(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + AT_REST_WITHIN;
        loop {
            let list = self.get("/api/v1/opsjobs?limit=1&phase=Pending").await?;
            let left = list.get("totalCount").and_then(Value::as_u64).context("a list has no count")?;
            if left == 0 {
                // The last status writes of the jobs may still be on their way.
                sleep(Duration::from_secs(5)).await;
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{left} jobs are Pending after {AT_REST_WITHIN:?}");
            sleep(Duration::from_secs(1)).await;
        }
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let request = Request::get(path).header("authorization", format!("Bearer {}", self.token));
        let answer = self.rest.send(request.body(Body::empty())?).await?;
        ensure!(answer.status() == 200, "{path} is answered {}", answer.status());
        let bytes = answer.into_body().collect().await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        Ok(serde_json::from_slice(&bytes)?)
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        let request = Request::post(path).header("authorization", format!("Bearer {}", self.token));
        let answer = self.rest.send(request.body(Body::from(body.to_string().into_bytes()))?).await?;
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
    }

    async fn reads(&self, path: &str, seconds: u64) -> anyhow::Result<Vec<f64>> {
        open_load(&self.rest, path, &self.token, seconds).await
    }

    /// Measures the same reads on a bare handler that answers the same bytes without any work.
    async fn bare(&self, path: &str, seconds: u64) -> anyhow::Result<Vec<f64>> {
        let request =
            Request::get(path).header("authorization", format!("Bearer {}", self.token)).body(Body::empty())?;
        let answer = self.rest.send(request).await?.into_body();
        let bytes = answer.collect().await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut config = Config::new(format!("http://{}", listener.local_addr()?).parse()?);
        config.default_retry = false;
        let app = Router::new().fallback(get(move || {
            let bytes = bytes.clone();
            async move { bytes }
        }));
        let serving = tokio::spawn(async move { axum::serve(listener, app).await });
        let times = open_load(&Client::try_from(config)?, path, &self.token, seconds).await;
        serving.abort();
        times
    }

    /// Measures reads of jobs that are gone: lists by an exact filter, lists by a part of a name, and single jobs, all at once.
    async fn gone(&self, seconds: u64) -> anyhow::Result<Value> {
        const JOBS: &str = "/api/v1/opsjobs";
        let list = format!("{JOBS}?type=addon&phase=Failed&limit=100");
        let (part, read) = (format!("{JOBS}?jobName=12345"), format!("{JOBS}/{}", self.filled.middle));
        let (list_bare, times) = (self.bare(&list, seconds).await?, async {
            let load = async |path: &str, rate: u64| {
                let read = |()| async { self.get(path).await.map(drop) };
                paced(rate, &vec![(); (rate * seconds) as usize], read).await
            };
            tokio::try_join!(load(&list, 18), load(&part, 3), load(&read, 9))
        });
        let (lists, parts, reads) = times.await?;
        let p99 = |times: &[f64]| quantile(times, 0.99).unwrap_or_default();
        Ok(json!({"listP99Ms": round(p99(&lists)), "partP99Ms": round(p99(&parts)), "readP99Ms": round(p99(&reads)),
            "ofBareHandler": round(p99(&lists) / p99(&list_bare))}))
    }

    /// Measures reads beside hostile connections.
    async fn troubled(&self, path: &str, seconds: u64) -> anyhow::Result<Vec<f64>> {
        let (mut troubles, address) = (JoinSet::new(), self.address);
        let head = format!(
            "POST /api/v1/opsjobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Length: 100000\r\n\r\n",
            self.token
        );
        for number in 0..(IDLE + SLOW + FLOODS) {
            let head = head.clone();
            troubles.spawn(async move {
                loop {
                    let Ok(mut stream) = connect(number, address).await else {
                        sleep(Duration::from_millis(100)).await;
                        continue;
                    };
                    let (first, more, pause): (&[u8], &[u8], u64) = match number {
                        number if number < IDLE => (b"", b"", 1_000),
                        number if number < IDLE + SLOW => (head.as_bytes(), b" ", 1_000),
                        _ => (b"GET / HTTP/1.1\r\n", b"x-flood: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n", 1),
                    };
                    let mut sent = stream.write_all(first).await;
                    let until = Instant::now() + Duration::from_secs(9);
                    while sent.is_ok() && Instant::now() < until {
                        sleep(Duration::from_millis(pause)).await;
                        sent = stream.write_all(more).await;
                    }
                }
            });
        }
        sleep(Duration::from_secs(1)).await;
        let times = self.reads(path, seconds).await;
        troubles.abort_all();
        times
    }

    /// Measures reads beside a flood of unsigned tokens.
    async fn beside_junk(&self, path: &str, seconds: u64) -> anyhow::Result<Vec<f64>> {
        let (ends, mut floods) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        for flood in 0..JUNK {
            let (rest, ends, path) = (self.rest.clone(), ends.clone(), path.to_owned());
            // The payload of the token is {"aud":["oarlock"]}.
            floods.spawn(async move {
                let mut number = 0_u64;
                while !ends.load(Ordering::Relaxed) {
                    number += 1;
                    let token = format!("Bearer e30.eyJhdWQiOlsib2FybG9jayJdfQ.{flood}x{number}");
                    let Ok(request) = Request::get(&path).header("authorization", token).body(Body::empty()) else {
                        return;
                    };
                    let _refused = rest.send(request).await;
                }
            });
        }
        let times = self.reads(path, seconds).await;
        ends.store(true, Ordering::Relaxed);
        floods.shutdown().await;
        times
    }
}

/// Connects from a separate address, because the server limits the connections of one address and the reader has its own.
async fn connect(number: usize, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let from = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 1)) + u32::try_from(number).unwrap_or(0));
    socket.bind(SocketAddr::new(from.into(), 0))?;
    socket.connect(to).await
}

/// Returns the times of [`READS`] reads per second.
async fn open_load(client: &Client, path: &str, token: &str, seconds: u64) -> anyhow::Result<Vec<f64>> {
    let reads = vec![(); (READS * seconds) as usize];
    let read = |()| async {
        let request = Request::get(path).header("authorization", format!("Bearer {token}")).body(Body::empty())?;
        let answer = client.send(request).await?;
        ensure!(answer.status() == 200, "a read is answered {}", answer.status());
        answer.into_body().collect().await.map_err(|error| anyhow::anyhow!(error))?;
        Ok(())
    };
    paced(READS, &reads, read).await
}

/// Returns the times of requests at a fixed rate. Each time counts from the moment at which the request was due.
async fn paced<T: Clone, F>(per_second: u64, of: &[T], request: impl Fn(T) -> F) -> anyhow::Result<Vec<f64>>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let mut due = interval(Duration::from_millis(1_000 / per_second));
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut running, mut times) = (FuturesUnordered::new(), Vec::new());
    for item in of {
        let at = loop {
            tokio::select! {
                at = due.tick() => break at,
                Some(time) = running.next() => times.push(time?),
            }
        };
        let request = request(item.clone());
        running.push(async move {
            request.await?;
            anyhow::Ok(millis(at))
        });
    }
    while let Some(time) = running.next().await {
        times.push(time?);
    }
    Ok(times)
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1_000.0
}

fn reboot(node: &str) -> Value {
    let fields =
        [("name", json!("bench")), ("type", json!("reboot")), ("inputs", json!([{"name": "node", "value": node}]))];
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}
