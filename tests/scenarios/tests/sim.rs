//! Every scenario on the in-memory API, under paused time.

use oarlock_scenarios::test_cluster::TestCluster;

/// Makes a test for each scenario, under its own name.
macro_rules! on_sim {
    ($($module:ident :: $scenario:ident),* $(,)?) => {$(
        #[tokio::test(start_paused = true)]
        async fn $scenario() {
            let mut cluster = TestCluster::sim(1).await.expect("the cluster starts");
            if let Err(error) = oarlock_scenarios::scenarios::$module::$scenario(&mut cluster).await {
                panic!("{error:#}");
            }
            if let Err(error) = cluster.finish().await {
                panic!("{error:#}");
            }
        }
    )*};
}

oarlock_scenarios::scenarios!(on_sim);
oarlock_scenarios::host_scenarios!(on_sim);
oarlock_scenarios::ops_scenarios!(on_sim);
oarlock_scenarios::log_scenarios!(on_sim);

// Scenarios that take too long in real time.
on_sim! {
    documented::the_documented_manifests_run_as_they_stand,
    collaset::the_sweep_for_a_job_that_vanished_holds_up_no_other,
    again::two_jobs_on_one_pod_leave_nothing_in_whatever_order_they_come_and_go,
    again::two_jobs_on_one_pod_end_in_whatever_order_they_begin,
    hostile::a_plugin_in_a_hurry_is_visited_less_and_less_often,
    granting::a_plugin_that_wants_another_field_of_pods_rests_no_other,
    hostile::a_plugin_whose_kinds_are_being_listed_keeps_no_other_job_waiting,
    hostile::a_plugin_that_never_converges_is_visited_less_and_less_often,
    lifecycle::what_a_lifecycle_waits_for_is_named,
    releasing::a_mark_without_an_answer_that_arrives_late_is_taken_off,
    records::records_that_were_removed_or_stripped_are_written_anew,
    nodes::a_forged_hold_goes_without_what_it_lists,
    many::of_ten_thousand_targets_every_second_one_fails,
    retrying::targets_in_records_are_tried_again_too,
    many::ten_thousand_targets_are_paused_and_deleted_soon_after_they_began,
    addons::scripts_of_a_second_take_nearly_all_of_the_time_of_an_addon,
}

// Exact figures of a host at rest, to the last request.
on_sim! {
    flow_figures::figures_of_flows_are_exact_and_go_with_their_objects_and_their_host,
}

// A cluster without OpenKruise.
on_sim! {
    lifecycle::without_kruise_pods_are_restarted_by_eviction,
}
