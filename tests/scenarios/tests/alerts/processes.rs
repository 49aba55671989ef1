//! The troubles of a process: its plugin files, its grants, its memory, its collector and an API server that is away.

use std::path::PathBuf;
use std::process::Command;

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use oarlock_scenarios::components::component;
use oarlock_scenarios::host_process::host_binary;
use oarlock_scenarios::jobs;
use oarlock_scenarios::monitoring::processes::Scraped;
use oarlock_scenarios::monitoring::promtool;
use oarlock_scenarios::monitoring::scene::Scene;
use oarlock_scenarios::monitoring::timeline::Timeline;
use oarlock_support::children::Child;
use serde_json::json;

/// A running `oarlock` that logs and serves metrics, with its folder.
struct Process {
    folder: PathBuf,
    child: Child,
    scraped: Scraped,
    timeline: Timeline,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill();
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

impl Process {
    /// Starts a command of `oarlock` with the Replace plugin in its plugin folder.
    async fn start(name: &str, arguments: &[&str]) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("oarlock-alerts-{}-{name}", std::process::id()));
        let plugins = folder.join("plugins");
        std::fs::create_dir_all(&plugins)?;
        std::fs::write(plugins.join("replace.wasm"), component("replace")?)?;
        let mut command = Command::new(host_binary()?);
        command.args(arguments).args(["--listen", "127.0.0.1:0", "--log", "info"]).arg("--plugins").arg(&plugins);
        command.env("XDG_CACHE_HOME", folder.join("cache"));
        let mut child = Child::spawn("oarlock", command, folder.join("log"))?;
        let scraped = Scraped::of(&mut child).await?;
        Ok(Self { folder, child, scraped, timeline: Timeline::default() })
    }

    /// Scrapes once every part is ready and the leader serves the plugin Replace. Then lets calm minutes pass.
    async fn scrape_calm(&mut self, minutes: usize) -> anyhow::Result<()> {
        self.scraped.until_above(SERVES_REPLACE, 0.0).await?;
        self.timeline.scrape("process", &self.scraped.until_calm().await?)?;
        self.timeline.pass(minutes);
        Ok(())
    }

    /// Scrapes once this series is above a value.
    async fn scrape_above(&mut self, series: &str, value: f64) -> anyhow::Result<()> {
        let text = self.scraped.until_above(series, value).await?;
        self.timeline.scrape("process", &text)
    }

    /// Ends the timeline, and checks that exactly these alerts have fired.
    fn fires(&self, alerts: &[&str]) -> anyhow::Result<()> {
        promtool::fires(&self.timeline, alerts)
    }
}

/// The series of the plugin that every process serves.
const SERVES_REPLACE: &str = r#"oarlock_plugins{name="replace",state="Serving"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_file_that_is_no_plugin_is_named() -> anyhow::Result<()> {
    let mut dev = Process::start("bad-plugin", &["dev"]).await?;
    dev.scrape_calm(5).await?;
    std::fs::write(dev.folder.join("plugins/bad.wasm"), "no plugin")?;
    dev.scrape_above(r#"oarlock_plugins{name="bad.wasm",state="Rejected"}"#, 0.0).await?;
    dev.timeline.pass(10);
    dev.fires(&["OarlockPluginRejected"])
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_that_cannot_be_read_are_reported() -> anyhow::Result<()> {
    let mut dev = Process::start("bad-grants", &["dev"]).await?;
    dev.scrape_calm(5).await?;
    std::fs::write(dev.folder.join("grants.yaml"), "plugin: [no grants")?;
    dev.scrape_above("oarlock_grants_refused", 0.0).await?;
    dev.timeline.pass(10);
    dev.fires(&["OarlockGrantsRefused"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_down_costs_its_spans_alone() -> anyhow::Result<()> {
    let mut dev = Process::start("no-collector", &["dev", "--otlp-endpoint", "http://127.0.0.1:9"]).await?;
    dev.scrape_calm(40).await?;
    let jobs: Api<DynamicObject> = Api::namespaced_with(client(&dev).await?, "default", &jobs::resource());
    let spec = jobs::replace(&["missing".to_owned()], json!({}));
    let job = DynamicObject::new("j", &jobs::resource()).data(json!({ "spec": spec }));
    jobs.create(&PostParams::default(), &job).await?;
    dev.scrape_above(r#"oarlock_trace_spans_total{outcome="dropped"}"#, 0.0).await?;
    dev.fires(&["OarlockTracesDropped"])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admission_policy_that_somebody_deletes_is_reported() -> anyhow::Result<()> {
    let mut dev = Process::start("no-policies", &["dev"]).await?;
    dev.scrape_calm(5).await?;
    let (kubeconfig, client) = (kubeconfig(&dev), client(&dev).await?);
    let policies: Api<ValidatingAdmissionPolicyBinding> = Api::all(client);
    for policy in policies.list(&ListParams::default()).await?.items {
        policies.delete(&policy.metadata.name.unwrap_or_default(), &DeleteParams::default()).await?;
    }
    // A host checks the policies when it starts. The running host would check them only after a minute.
    let path = kubeconfig.display().to_string();
    let standby = Process::start("standby", &["host", "--identity", "standby", "--kubeconfig", &path]).await?;
    for part in ["cache", "flows", "holds", "lease", "opsjobs", "plugins"] {
        standby.scraped.until_above(&format!("oarlock_part_ready{{part=\"{part}\"}}"), 0.0).await?;
    }
    let text = standby.scraped.until_zero(r#"oarlock_part_ready{part="admission"}"#).await?;
    dev.timeline.scrape("standby", &text)?;
    dev.timeline.pass(8);
    dev.fires(&["OarlockPoliciesMissing"])
}

/// Returns a client of the cluster of `oarlock dev`.
async fn client(dev: &Process) -> anyhow::Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig(dev))?;
    Ok(Client::try_from(Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?)?)
}

/// Returns the path of the kubeconfig that `oarlock dev` prints.
fn kubeconfig(dev: &Process) -> PathBuf {
    let log = dev.child.tail(400);
    let path = log.split_once("export KUBECONFIG=").and_then(|(_, rest)| rest.lines().next());
    PathBuf::from(path.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_reach_its_api_server_is_reported() -> anyhow::Result<()> {
    let kubeconfig = std::env::temp_dir().join(format!("oarlock-alerts-{}.kubeconfig", std::process::id()));
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n\
        - {name: c, cluster: {server: \"http://127.0.0.1:9\"}}\ncontexts:\n- {name: c, context: {cluster: c, user: u}}\n\
        users:\n- {name: u, user: {}}\n";
    std::fs::write(&kubeconfig, text)?;
    let path = kubeconfig.display().to_string();
    let mut host = Process::start("no-api-server", &["host", "--identity", "h", "--kubeconfig", &path]).await?;
    let failed = r#"oarlock_api_request_duration_seconds_count{resource="leases",verb="get",code="unconnected"}"#;
    host.scrape_above(failed, 0.0).await?;
    host.timeline.pass(20);
    host.scrape_above(failed, 2.0).await?;
    std::fs::remove_file(kubeconfig)?;
    host.fires(&["OarlockApiServerErrors", "OarlockKindNotListed", "OarlockNoLeader", "OarlockPartNotReady"])
}

#[tokio::test(start_paused = true)]
async fn a_process_near_its_memory_limit_is_reported_before_the_kernel_kills_it() -> anyhow::Result<()> {
    for (times, alerts) in [(1.02, ["OarlockMemoryNearLimit"].as_slice()), (10.0, [].as_slice())] {
        let mut scene = Scene::begin().await?;
        scene.cluster.start_host().await?;
        scene.pass(2).await?;
        let metrics = scene.cluster.running()?.host.metrics.clone();
        let text = metrics.text();
        let resident = text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes ")?.parse().ok());
        let resident: f64 = resident.ok_or_else(|| anyhow::anyhow!("no memory is shown: {text}"))?;
        metrics.shows_memory_limit((resident * times) as u64);
        scene.scrape()?;
        scene.timeline.pass(15);
        scene.fires(alerts)?;
    }
    Ok(())
}
