//! Serves an in-memory cluster with the objects of the given files on a free loopback port, until you interrupt it.
//! To try kubectl by hand, run `cargo run -p oarlock-sim --example serve -- crd.yaml`, then
//! `kubectl --server http://127.0.0.1:PORT get pods`.

use std::sync::Arc;

use http::Request;
use kube::client::Body;
use oarlock_sim::{Cluster, Options, RealClock};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::new(Options { clock: Arc::new(RealClock), ..Options::default() });
    for file in std::env::args().skip(1) {
        for document in std::fs::read_to_string(&file)?.split("\n---") {
            let object: serde_json::Value = serde_saphyr::from_str(document)?;
            let path = collection(&object).ok_or_else(|| format!("{file}: an object without kind or apiVersion"))?;
            let request = Request::post(&path).body(Body::from(serde_json::to_vec(&object)?))?;
            let response = cluster.respond(request).await;
            eprintln!("{} {path}", response.status());
        }
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    cluster.serve(listener).await?;
    Ok(())
}

fn collection(object: &serde_json::Value) -> Option<String> {
    let (api_version, kind) = (object.get("apiVersion")?.as_str()?, object.get("kind")?.as_str()?.to_lowercase());
    let plural = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
    let prefix = if api_version.contains('/') { "apis" } else { "api" };
    let namespace = object.pointer("/metadata/namespace").and_then(|namespace| namespace.as_str());
    let namespace = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
    Some(format!("/{prefix}/{api_version}/{namespace}{plural}"))
}
