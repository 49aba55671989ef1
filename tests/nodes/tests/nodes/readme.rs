//! README's commands, run as they are written, on real nodes.

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::documents::text_at;
use crate::scenario::Scenario;
use crate::shared_cluster::SharedCluster;

/// Returns the commands of the first block after this heading, without comments. A trailing backslash joins two lines.
fn commands(heading: &str) -> anyhow::Result<Vec<String>> {
    let text = include_str!("../../../../README.md");
    let (_, rest) = text.split_once(heading).with_context(|| format!("README has no {heading}"))?;
    let (_, rest) = rest.split_once("```sh\n").with_context(|| format!("{heading} has no commands"))?;
    let (block, _) = rest.split_once("```").with_context(|| format!("the commands of {heading} do not end"))?;
    let joined = block.replace("\\\n", "");
    let bare = |line: &str| line.split_once("  # ").map_or(line, |(line, _)| line).trim().to_owned();
    Ok(joined.lines().map(bare).filter(|line| !line.is_empty()).collect())
}

/// Returns the command that begins with these words.
fn command<'a>(all: &'a [String], words: &str) -> anyhow::Result<&'a String> {
    all.iter().find(|line| line.starts_with(words)).with_context(|| format!("README has no {words}: {all:#?}"))
}

/// Tests README's commands for a job: print, plan, create and show it. The job waits for its partition.
pub(crate) fn what_readme_says_of_pods_is_so(scenario: &Scenario) -> anyhow::Result<()> {
    let labels = json!({"app": "foo"});
    let pod = json!({"containers": [crate::documents::shell("trap exit TERM; sleep 3600 & wait")]});
    scenario.apply(
        &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "foo"}, "spec": {"replicas": 2,
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}}),
    )?;
    scenario.kubectl(&["rollout", "status", "deployment/foo", "--timeout=120s"])?;
    let all = [commands("## On a cluster")?, commands("## Run and watch")?].concat();
    let run = |words: &str| {
        // README says that on a cluster the plugins are in this folder.
        let line = command(&all, words)?.replace("target/dev/plugins", "target/try/plugins");
        scenario.cluster.shell(
            &line.replace("--namespace default", &format!("--namespace {}", scenario.namespace)),
            &scenario.namespace,
        )
    };
    for words in ["mkdir", "cp", "oarlock plugin grant", "oarlock run Replace"] {
        run(words)?;
    }
    let plan = run("oarlock plan")?;
    ensure!(plan.contains("evict"), "{plan}");
    run("kubectl create -f")?;
    scenario
        .until("the job waits for its partition", || Ok(run("oarlock get")?.contains("Partition").then_some(())))?;
    scenario.kubectl(&["patch", "opj", "opj-foo", "--type", "merge", "-p", "{\"spec\":{\"partition\":2}}"])?;
    let job = scenario.until_ended("opj-foo")?;
    ensure!(text_at(&job, "/status/progress") == "Succeeded", "{job:#}");
    let watched = run("oarlock watch")?;
    ensure!(watched.contains("Succeeded"), "{watched}");
    Ok(())
}

/// Tests README's commands that check both nodes of the host, and reboot them one after the other with a drain.
pub(crate) fn what_readme_says_of_nodes_is_so(scenario: &Scenario) -> anyhow::Result<()> {
    let nodes = SharedCluster::calm();
    for node in &nodes {
        scenario.cluster.kubectl(&["label", "node", node, "readme=true", "--overwrite"])?;
    }
    let before: Vec<usize> = nodes.iter().map(|node| scenario.cluster.boots(node)).collect::<Result<_, _>>()?;
    let all = commands("## Nodes")?;
    for words in ["oarlock run preflight", "oarlock run reboot"] {
        // All other nodes have a taint.
        let line = command(&all, words)?.replace("kubectl get nodes", "kubectl get nodes -l readme=true");
        let said = scenario.cluster.shell(&line, &scenario.namespace)?;
        ensure!(said.contains("Succeeded"), "{said}");
    }
    let after: Vec<usize> = nodes.iter().map(|node| scenario.cluster.boots(node)).collect::<Result<_, _>>()?;
    ensure!(before.iter().zip(&after).all(|(before, after)| before + 1 == *after), "{before:?} and {after:?}");
    for node in &nodes {
        let found: Value = serde_json::from_str(&scenario.cluster.kubectl(&["get", "node", node, "-o", "json"])?)?;
        ensure!(found.pointer("/spec/unschedulable").is_none(), "{found:#}");
    }
    Ok(())
}
