//! EchoJobs on a real etcd and API server, with a host that has exactly the rights of the printed roles.

#![cfg(test)]

mod stories;

use oarlock_scenarios::test_cluster::{TestCluster, real_plane};
use oarlock_support::control_plane::{GARBAGE_COLLECTOR, NAMESPACE, Options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_runs_one_pod_in_each_namespace_and_cleans_up_on_a_real_control_plane() -> anyhow::Result<()> {
    let controllers = vec![GARBAGE_COLLECTOR, NAMESPACE];
    let plane = real_plane(Options { controllers, ..Options::default() }).await?;
    stories::a_job_runs_one_pod_in_each_namespace_and_cleans_up(TestCluster::real(plane, "echo").await?).await
}
