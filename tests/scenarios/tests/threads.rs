//! Scenarios on the in-memory API in real time, with four worker threads. Tasks that alternate on one thread elsewhere run in parallel here.

use oarlock_scenarios::test_cluster::TestCluster;

/// Makes a test for each scenario, under its own name.
macro_rules! on_four_threads {
    ($($module:ident :: $scenario:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $scenario() -> anyhow::Result<()> {
            let mut cluster = TestCluster::sim(1).await?;
            oarlock_scenarios::scenarios::$module::$scenario(&mut cluster).await?;
            cluster.finish().await
        }
    )*};
}

on_four_threads! {
    many::small_jobs_and_a_large_one_come_and_go_while_pods_change,
    many::three_hundred_targets_are_kept_in_records,
    evicting::twenty_pods_of_one_replica_set_get_twenty_different_new_pods,
    collaset::marks_of_two_jobs_stay_until_the_second_ends,
    collaset::one_of_two_jobs_lets_go_and_the_other_still_gets_its_new_pod,
    hostile::a_slow_plugin_leaves_the_others_their_places,
    outages::an_outage_in_the_middle_costs_nothing,
    restarting::of_two_hosts_one_acts_and_the_other_takes_over,
}
