//! The benches. `cargo xtask bench` builds them with optimizations and runs them. They print figures and ratios and judge nothing.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

use crate::arguments::{Arguments, Operations, Scenario, What};

mod addons;
mod age;
mod arguments;
mod backend;
mod bare;
mod bench_cluster;
mod beside_bare;
mod calm_and_killed;
mod checks;
mod children;
mod cleanup;
mod contenders;
mod crowd;
mod deadline;
mod flows;
mod goals;
mod history;
mod ideal;
mod idle;
mod job_watch;
mod kills;
mod logs;
mod meter;
mod metrics;
mod neighbours;
mod node_history;
mod node_setup;
mod ops_jobs;
mod ops_objects;
mod outage;
mod outcome;
mod pipeline;
mod plugins;
mod policies;
mod reboots;
mod received;
mod replace;
mod replacements;
mod requests;
mod rest;
mod restart;
mod rolling;
mod served_sim;
mod setup;
mod spread;
mod steady;
mod table;
mod usage;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (figures, json) = match arguments.what {
        What::Plugins { common } => {
            let components = common.plugins_from.unwrap_or_else(components);
            let figures = runtime.block_on(plugins::run(&components))?;
            println!("{}", table::plugins(&figures));
            (figures, common.json)
        }
        What::Operations(asked) => {
            let figures = runtime.block_on(operations(&asked))?;
            (figures, asked.common.json)
        }
        What::Flows(asked) => {
            let components = asked.common.plugins_from.clone().unwrap_or_else(components);
            let figures = runtime.block_on(flows::run(&asked, &components))?;
            println!("{}", table::operations(&figures));
            (figures, asked.common.json)
        }
        What::Policies(asked) => {
            let figures = runtime.block_on(policies::run(&asked))?;
            println!("{}", table::policies(&figures));
            (figures, asked.common.json)
        }
        What::Logs(asked) => {
            let components = asked.common.plugins_from.clone().unwrap_or_else(components);
            (runtime.block_on(logs::run(&asked, &components))?, asked.common.json)
        }
        What::Rest(asked) => {
            let components = asked.common.plugins_from.clone().unwrap_or_else(components);
            (runtime.block_on(rest::run(&asked, &components))?, asked.common.json)
        }
        What::Bare { kubeconfig, namespace, mode } => {
            return runtime.block_on(async { bare::run(client(kubeconfig).await?, &namespace, mode).await });
        }
        What::BareFlows { kubeconfig, namespace, file } => {
            return runtime.block_on(async { flows::bare::run(client(kubeconfig).await?, &namespace, &file).await });
        }
    };
    if let Some(file) = json {
        std::fs::write(&file, serde_json::to_string_pretty(&figures)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Runs a scenario and prints its tables.
async fn operations(asked: &Operations) -> anyhow::Result<Value> {
    let components = asked.common.plugins_from.clone().unwrap_or_else(components);
    let counts = match (asked.scenario, asked.targets) {
        (Scenario::Replace | Scenario::Reboots, None) => vec![100, 1000],
        (Scenario::Deadline, None) => vec![100],
        (Scenario::Neighbours, None) => vec![300],
        (Scenario::OpsJobs, None) => vec![5_000],
        (Scenario::Crowd | Scenario::Restart, None) => vec![10_000],
        _ => vec![asked.targets(1000)],
    };
    let mut all = Vec::new();
    for count in counts {
        let figures = match asked.scenario {
            Scenario::Replace | Scenario::Crowd => replace::run(asked, count, &components).await?,
            Scenario::BesideBare => beside_bare::run(asked, count, &components).await?,
            Scenario::Steady => steady::run(asked, count, &components).await?,
            Scenario::Idle => idle::run(asked, count, &components).await?,
            Scenario::Deadline => deadline::run(asked, count, &components).await?,
            Scenario::Outage => outage::run(asked, count, &components).await?,
            Scenario::Neighbours => neighbours::run(asked, count, &components).await?,
            Scenario::Rolling => rolling::run(asked, count, &components).await?,
            Scenario::Kills => kills::run(asked, count, &components).await?,
            Scenario::Restart => restart::run(asked, count, &components).await?,
            Scenario::Reboots => reboots::run(asked, count, &components).await?,
            Scenario::OpsJobs => ops_jobs::run(asked, count, &components).await?,
            Scenario::Addons => addons::run(asked, count, &components).await?,
            Scenario::Checks => checks::run(asked, count, &components).await?,
        };
        println!("{}", table::operations(&figures));
        all.push(figures);
    }
    Ok(Value::Array(all))
}

/// Returns the client of a bare client. It does not retry, so the bare client sees every answer.
async fn client(kubeconfig: PathBuf) -> anyhow::Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(kube::Client::try_from(config)?)
}

/// Returns the folder in which `cargo xtask plugins` leaves components.
fn components() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from).join("wasm32-wasip2/release")
}
