//! The plugins of jobs while the host reads its plugin directory for the first time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails loudly")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use oarlock::metrics::Metrics;
use oarlock::ports::Ports;
use oarlock_api::{OperationJob, PluginBinding};

use oarlock_core::operation_job::round::memory::JobMemory;
use oarlock_core::plugin::lookup::PluginLookup;
use oarlock_kube::{Cluster, Setup};
use oarlock_wasm::{CompileWith, FirstScan, Options, Plugins};

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("first-scan-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("plugins")).unwrap();
    folder
}

fn components() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")), PathBuf::from);
    std::env::var_os("OARLOCK_COMPONENTS").map_or_else(|| target.join("wasm32-wasip2/release"), PathBuf::from)
}

async fn scanned(plugins: &Plugins, wanted: FirstScan) {
    let mut progress = plugins.first_scan();
    let reached = tokio::time::timeout(Duration::from_secs(60), progress.wait_for(|progress| *progress >= wanted));
    reached.await.unwrap().unwrap();
}

fn job(action: &str) -> OperationJob {
    let document = serde_json::json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
        "metadata": {"name": "a", "namespace": "shop"}, "spec": {"action": action, "targets": []}});
    serde_json::from_value(document).unwrap()
}

#[tokio::test]
async fn no_job_is_told_that_it_has_no_plugin_before_all_files_were_read() {
    let folder = folder();
    let (end, grants) = (folder.join("end"), folder.join("grants.yaml"));
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/replace/grant.yaml"), &grants).unwrap();
    std::fs::copy(components().join("replace.wasm"), folder.join("plugins/replace.wasm")).unwrap();
    let script = format!("cat > /dev/null; until [ -e {} ]; do sleep 0.1; done", end.display());
    let arguments = vec!["-c".into(), script.into()];
    let options = Options {
        dir: Some(folder.join("plugins")),
        grants: Some(grants),
        compile_with: CompileWith::Helper { program: "/bin/sh".into(), arguments },
        ..Options::in_memory()
    };
    let plugins = Plugins::start(options).await.unwrap();
    let client = Client::new(oarlock_sim::Cluster::new(oarlock_sim::Options::default()).service(), "default");
    let (cluster, _events) = Cluster::open(Setup { client, clock: Arc::new(Timestamp::now), identity: "a".to_owned() });
    let metrics = Arc::new(Metrics::new(cluster.requests()));
    let ports = Ports::new(cluster, plugins.clone(), metrics);

    let mut bound = JobMemory::default();
    bound.stored.state.plugin = Some(PluginBinding { digest: "sha256:gone".to_owned(), ..PluginBinding::default() });
    scanned(&plugins, FirstScan::Cached).await;
    for memory in [&JobMemory::default(), &bound] {
        assert!(ports.plugin_for(&job("Replace"), memory).is_none());
    }
    std::fs::write(&end, "").unwrap();
    scanned(&plugins, FirstScan::Done).await;
    for memory in [&JobMemory::default(), &bound] {
        let found = ports.plugin_for(&job("Replace"), memory);
        assert!(matches!(found, Some(PluginLookup::Unknown { .. })), "{found:?}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
