//! Scenarios on real nodes. The scenarios use the host with kubectl and `oarlock`, and check the results on the nodes.
//!
//! All scenarios share one cluster, which ends with this process. A scenario that disturbs nodes has nodes for itself.
//! The scenarios that disturb the control plane or the host run alone, after all others.

mod alone;
mod charts;
mod checks;
mod documents;
mod exports;
mod flows;
mod logs;
mod ops;
mod pods;
mod readme;
mod reboots;
mod rest;
mod scenario;
mod scripts;
mod shared_cluster;
mod tenants;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::scenario::Scenario;
use crate::shared_cluster::SharedCluster;

type ScenarioFn = fn(&Scenario) -> anyhow::Result<()>;

/// A scenario, and the number of nodes that it has for itself.
struct Played {
    name: &'static str,
    nodes: usize,
    play: ScenarioFn,
}

macro_rules! scenarios {
    ($($nodes:literal: $module:ident :: $name:ident),* $(,)?) => {
        vec![$(Played { name: stringify!($name), nodes: $nodes, play: $module::$name }),*]
    };
}

/// Returns the scenarios that run in parallel. The scenarios with the longest waits come first.
fn beside_others() -> Vec<Played> {
    scenarios![
        5: reboots::nodes_are_drained_and_rebooted_two_at_a_time_once_each,
        5: ops::the_scripts_of_an_addon_run_once_although_a_node_loses_its_power,
        3: ops::a_node_that_does_not_come_back_costs_its_ops_job_its_time,
        2: ops::nodes_are_checked_and_rebooted_by_ops_jobs,
        1: rest::an_addon_a_dumplog_and_an_export_are_made_by_rest,
        2: rest::ops_jobs_are_made_followed_stopped_and_deleted_by_rest,
        1: flows::a_step_whose_node_loses_its_power_is_done_once_more,
        1: flows::a_step_whose_node_is_rebooted_under_it_is_done_once_more,
        1: flows::a_step_that_its_node_evicts_for_memory_is_done_once_more,
        1: reboots::a_node_that_does_not_come_back_fails_in_time_and_stops_the_job,
        1: checks::a_node_whose_kubelet_stands_still_is_no_healthy_one,
        2: flows::a_daemon_job_runs_on_each_node_and_names_the_one_that_is_dead,
        1: checks::a_check_ends_well_although_kubelet_and_containerd_are_killed,
        1: reboots::a_hold_that_somebody_takes_off_leaves_no_cordon_behind,
        1: scripts::a_script_runs_once_although_kubelet_and_containerd_are_killed,
        2: logs::the_logs_of_a_workload_are_one_file_and_a_node_that_is_dead_costs_only_its_own,
        0: exports::what_runs_is_exported_to_a_registry_that_goes_down_and_nobody_sees_its_password,
        1: scripts::a_script_that_takes_too_long_leaves_no_process,
        1: checks::a_check_is_what_its_program_and_its_message_say,
        1: checks::a_check_that_takes_too_long_leaves_no_process,
        1: flows::a_step_ends_well_although_its_node_stands_still_for_a_while,
        2: flows::a_daemon_job_takes_its_nodes_one_at_a_time,
        0: flows::a_step_over_its_empty_dir_is_told_as_evicted,
        0: flows::a_step_that_takes_too_much_memory_is_told_as_killed_for_it,
        0: flows::a_step_whose_image_is_missing_says_so_and_ends_in_time,
        0: flows::a_step_that_fails_at_first_is_retried_and_an_indexed_one_runs_each_index,
        0: flows::an_indexed_step_with_an_index_that_fails_names_its_pod,
        0: flows::a_step_that_takes_too_long_is_ended_and_finally_runs,
        0: flows::a_suspended_flow_waits_and_goes_on,
        0: flows::a_suspended_step_ends_in_its_time_and_its_job_stays,
        0: flows::indexed_steps_of_long_and_dotted_names_run,
        0: flows::an_index_that_fails_is_tried_again_as_its_template_says,
        0: readme::what_readme_says_of_pods_is_so,
        0: pods::pods_of_a_deployment_are_replaced,
        0: pods::pods_of_a_stateful_set_are_replaced,
        0: pods::pods_of_a_daemon_set_are_replaced,
        0: pods::pods_are_restarted_by_eviction,
        0: pods::a_budget_holds_a_replacement_up_until_it_is_relaxed,
        0: pods::a_job_that_is_deleted_in_flight_leaves_its_pods_as_they_were,
        0: tenants::a_namespace_that_is_deleted_in_flight_leaves_nothing,
        0: tenants::a_flow_whose_pods_pod_security_refuses_ends_in_time,
        0: tenants::a_flow_whose_pods_a_quota_refuses_ends_in_time,
        0: tenants::a_flow_whose_pods_a_limit_range_refuses_ends_in_time,
    ]
}

fn alone() -> Vec<Played> {
    scenarios![
        0: flows::readmes_flow_and_daemon_job_run_as_they_are_written,
        2: alone::a_leader_that_is_killed_at_each_point_of_the_reboots_costs_nothing,
        1: alone::an_ops_job_is_known_by_the_next_leader_although_two_were_killed,
        2: alone::a_leader_whose_node_loses_its_power_amid_reboots_costs_nothing,
        2: alone::an_api_server_that_restarts_amid_reboots_costs_nothing,
        2: alone::servers_that_stand_still_amid_reboots_cost_nothing,
        0: logs::logs_are_in_a_bucket_although_its_store_goes_down,
        // This scenario leaves both replicas of the host on one node.
        0: readme::what_readme_says_of_nodes_is_so,
        // This scenario leaves one replica.
        0: rest::a_host_with_its_history_on_a_volume_is_drained_by_its_own_job_and_forgets_nothing,
        // This scenario leaves a release of the chart in place of the applied manifests.
        0: charts::a_release_adopts_is_upgraded_rolled_back_and_uninstalled_amid_jobs,
    ]
}

fn main() -> ExitCode {
    let began = Instant::now();
    let arguments = Arguments::from_args();
    if arguments.list {
        let trials = beside_others().into_iter().chain(alone()).map(|played| Trial::test(played.name, || Ok(())));
        return libtest_mimic::run(&arguments, trials.collect()).exit_code();
    }
    let cluster = match SharedCluster::start() {
        Ok(cluster) => Arc::new(cluster),
        Err(cause) => {
            println!("there is no cluster to test on: {cause:#}\ntest result: FAILED. 0 passed; 1 failed");
            return ExitCode::FAILURE;
        }
    };
    println!("cluster and host are there after {} s", began.elapsed().as_secs());
    let trial = |played: Played| {
        let cluster = cluster.clone();
        Trial::test(played.name, move || {
            let begun = Instant::now();
            let scenario = cluster.scenario(played.name, played.nodes);
            let outcome = scenario.and_then(|scenario| {
                let outcome = (played.play)(&scenario).and_then(|()| scenario.close());
                outcome.inspect_err(|_| scenario.abandon())
            });
            // The outcome is printed at once, because other scenarios may take minutes.
            let word = outcome.as_ref().map_or_else(|cause| format!("FAILED: {cause:#}"), |()| "ok".to_owned());
            println!("    {:>4} s  {}: {word}", begun.elapsed().as_secs(), played.name);
            outcome.map_err(|cause| Failed::from(format!("{cause:#}")))
        })
    };
    // More threads than cores are fine, because scenarios mostly wait.
    let beside = Arguments { test_threads: Some(arguments.test_threads.unwrap_or(10)), ..arguments.clone() };
    let first = libtest_mimic::run(&beside, beside_others().into_iter().map(trial).collect());
    let one = Arguments { test_threads: Some(1), ..arguments };
    let second = libtest_mimic::run(&one, alone().into_iter().map(trial).collect());
    let left = cluster.end();
    println!("{} s in all", began.elapsed().as_secs());
    if let Err(cause) = left {
        println!("the cluster left something: {cause:#}\ntest result: FAILED. 0 passed; 1 failed");
        return ExitCode::FAILURE;
    }
    if first.has_failed() || second.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
