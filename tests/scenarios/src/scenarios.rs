//! Scenarios that are written once and run on both clusters.
//!
//! Each scenario is a short script from an operator's point of view. It takes a test cluster, and its error shows what it observed. A
//! scenario that needs a host starts one.

pub mod addons;
pub mod admission;
pub mod again;
pub mod awaited;
pub mod bounding;
pub mod collaset;
pub mod daemons;
pub mod deadlines;
pub mod documented;
pub mod drains;
pub mod dry_runs;
pub mod dumplogs;
pub mod ending;
pub mod epochs;
pub mod evicting;
pub mod exports;
pub mod extremes;
pub mod flow_ends;
pub mod flow_figures;
pub mod flow_late;
pub mod flow_steps;
pub mod flow_terms;
pub mod flows;
pub mod granting;
pub mod hostile;
pub mod large_daemons;
pub mod lifecycle;
pub mod limits;
pub mod many;
pub mod namespaces;
pub mod nodes;
pub mod on_nodes;
pub mod ops_crashes;
pub mod ops_jobs;
pub mod outages;
pub mod panics;
pub mod pausing;
pub mod reboots;
pub mod records;
pub mod releasing;
pub mod replacing;
pub mod restarting;
pub mod retrying;
pub mod selecting;
pub mod stored;
mod targets;
pub mod tasks;
pub mod telling;
pub mod unavailable;

use std::time::Duration;

pub use self::targets::{all_replaced, identities, names, settled_collaset, settled_deployment};
pub(crate) use self::targets::{holds, is_held, settled};

/// The time limit within which every simulated set settles.
pub(crate) const SETTLED: Duration = Duration::from_secs(300);
/// The time by which the watch of the simulated controllers may lag behind the host's watch.
pub(crate) const HEARD: Duration = Duration::from_secs(30);

/// Calls a macro with the scenarios in which the API server decides something: it admits, merges, evicts, collects,
/// conflicts or ends a watch. These scenarios run on both clusters.
#[macro_export]
macro_rules! scenarios {
    ($make:ident) => {
        $make! {
            flows::a_missing_template_blocks_one_step_and_heals,
            flows::a_failed_flow_is_mended_and_retried_by_hand,
            flows::a_job_that_expires_at_once_is_recorded_and_runs_once,
            flows::a_running_job_that_is_deleted_has_failed,
            flows::a_foreign_job_is_never_touched,
            flows::a_forged_job_decides_no_step,
            flows::a_cycle_is_spelled_and_an_edit_heals_it,
            flow_ends::suspended_time_does_not_count_against_the_time_of_a_flow,
            flow_ends::a_step_whose_pod_finds_no_node_says_what_it_waits_for,
            flow_ends::a_refused_time_to_live_is_told_of_and_begins_once_it_is_allowed,
            flow_late::a_conflict_moves_no_record,
            flow_late::a_write_of_a_record_that_comes_late_changes_no_newer_one,
            flow_terms::a_host_that_leads_again_and_does_not_see_a_running_job_makes_no_other,
            flow_terms::steps_whose_record_was_deleted_are_not_run_again,
            flow_steps::all_steps_run_on_one_node_and_two_of_them_share_a_volume,
            flow_steps::globals_volumes_and_overrides_come_together_in_a_job,
            flow_steps::a_step_of_three_pods_is_done_when_all_three_are,
            flow_steps::a_job_of_two_long_names_is_found_again,
            flow_steps::a_job_in_a_queue_is_left_to_whoever_admits_it,
            flow_steps::a_branch_for_failures_is_left_out_and_the_join_runs,
            flow_steps::a_tolerated_failure_fails_no_flow,
            flow_steps::an_evicted_attempt_does_not_count_as_a_failure_of_the_work,
            flow_steps::an_operation_is_retried_for_the_target_that_failed,
            flow_steps::an_operation_runs_once_its_plugin_is_there,
            flow_ends::a_flow_that_is_being_deleted_replaces_no_child_that_vanishes,
            flow_ends::objects_of_the_original_operator_are_taken_over_as_they_are,
            daemons::a_node_that_is_not_ready_is_waited_for_or_left_out,
            daemons::nodes_that_go_and_come,
            large_daemons::cordoned_and_tainted_nodes_are_left_out_where_asked_for,
            admission::absent_and_null_fields_get_their_defaults,
            admission::a_bad_spec_is_refused_in_words_that_name_field_and_rule,
            admission::a_duplicate_among_300_targets_is_named,
            admission::a_partition_is_never_lowered_nor_removed,
            admission::action_targets_and_parameters_never_change,
            stored::stored_jobs_that_break_a_rule_are_invalid_and_the_others_go_on,
            stored::a_stored_job_goes_on_once_its_spec_keeps_the_rules,
            limits::a_parameter_that_is_required_and_missing_is_named,
            stored::garbage_in_a_status_costs_nothing,
            stored::a_cleared_status_is_rebuilt_from_what_is_held,
            replacing::collaset_pods_are_replaced_one_partition_after_the_other,
            replacing::pods_of_another_namespace_replace_none,
            again::a_stateful_sets_pod_is_replaced_again_and_again,
            again::a_job_that_names_its_own_new_pod_replaces_both,
            collaset::a_terminating_pod_is_let_go_when_its_job_is_deleted,
            collaset::marks_of_two_jobs_stay_until_the_second_ends,
            collaset::labels_that_a_user_set_stay,
            collaset::the_old_pod_stays_until_its_new_pod_is_stored,
            collaset::holds_of_a_job_that_vanished_are_let_go,
            awaited::a_replacement_that_finds_no_node_names_its_pod_and_the_words_of_the_scheduler,
            evicting::twenty_pods_of_one_replica_set_get_twenty_different_new_pods,
            evicting::a_new_pod_counts_once_it_was_ready_for_long_enough,
            evicting::a_bare_pod_is_left_alone_unless_it_is_to_be_marked,
            evicting::a_disruption_budget_is_waited_for_and_told_once,
            evicting::all_budgets_over_a_pod_are_named_where_there_are_several,
            evicting::a_target_that_was_never_there_or_vanished_is_not_found,
            evicting::a_namesake_that_came_later_is_never_touched,
            evicting::what_replaced_a_target_is_nobody_elses_once_its_job_is_gone,
            ending::an_ended_job_is_deleted_once_its_time_to_live_is_over,
            ending::a_time_to_live_that_was_raised_at_the_last_moment_counts,
            ending::a_time_to_live_that_was_raised_unseen_counts,
            ending::an_ended_job_causes_no_write,
            deadlines::a_deadline_is_kept_while_a_budget_refuses_the_eviction,
            lifecycle::pods_are_restarted_in_place_once_their_traffic_is_drained,
            restarting::a_host_that_was_killed_after_an_eviction_finds_the_new_pod,
            restarting::of_two_hosts_one_acts_and_the_other_takes_over,
            restarting::a_clock_ten_minutes_ahead_changes_nothing,
            restarting::a_clock_ten_minutes_behind_changes_nothing,
            outages::a_host_that_starts_without_its_api_server_waits_for_it,
            outages::an_outage_in_the_middle_costs_nothing,
            outages::a_fresh_pod_that_the_watch_does_not_show_is_looked_at,
            outages::an_eviction_that_commits_late_is_told_as_it_was,
            outages::an_eviction_of_an_earlier_term_comes_too_late,
            outages::a_mark_of_a_leader_that_was_superseded_comes_too_late,
            outages::a_job_that_may_not_be_written_keeps_no_neighbour_waiting,
            outages::a_job_whose_status_the_server_fails_keeps_no_neighbour_waiting,
            outages::what_was_held_back_while_renewals_hung_is_made_in_the_next_term,
            epochs::a_leader_that_lost_its_lease_ends_its_term_when_a_status_has_a_higher_epoch,
            epochs::a_higher_epoch_in_a_status_ends_no_term_while_the_lease_is_held,
            unavailable::a_rolling_replacement_keeps_within_its_bound,
            many::three_hundred_targets_are_kept_in_records,
            selecting::what_a_selector_found_is_frozen_with_its_uids,
            selecting::three_hundred_pods_of_a_deployment_are_selected_once,
            records::no_pod_is_marked_while_the_status_says_less_than_the_records,
            records::a_last_status_write_that_conflicts_is_made_again,
            extremes::a_job_that_leaves_no_room_for_its_status_is_told_and_costs_only_itself,
            extremes::pods_that_never_ran_are_replaced_by_a_host_whose_clock_is_ahead,
            extremes::pods_with_a_boundless_grace_period_are_evicted,
            extremes::marked_pods_with_a_boundless_grace_period_are_deleted_by_hand,
            extremes::times_at_the_ends_of_the_calendar_in_a_status_cost_nothing,
            granting::a_grant_that_is_narrowed_in_flight_stops_starts_and_fails_nothing,
            releasing::a_release_that_is_refused_keeps_no_other_waiting,
            releasing::a_job_whose_finalizer_was_taken_off_leaves_nothing,
            releasing::a_mark_that_arrives_after_its_job_has_vanished_is_taken_off,
            namespaces::a_deleted_namespace_with_jobs_in_flight_is_gone_within_a_minute,
            nodes::nodes_are_kept_free_one_after_the_other,
            nodes::a_node_that_is_not_there_or_made_anew_is_not_worked_on,
            nodes::a_cordon_of_somebody_else_stays_on_its_node,
            nodes::a_node_is_let_go_when_its_job_is_deleted_late_or_without_a_host,
            nodes::a_node_is_let_go_as_its_job_vanishes,
            nodes::a_cordon_of_a_job_that_vanished_is_taken_off,
            nodes::a_namespace_without_the_label_has_no_jobs_on_nodes,
            nodes::a_label_that_is_taken_off_in_flight_stops_starts_and_fails_nothing,
            drains::a_node_is_drained_of_all_pods_that_have_to_go_and_their_budget_is_waited_for,
            drains::pods_that_may_not_go_are_named_and_cost_their_own_node_its_time,
            reboots::nodes_are_rebooted_two_at_a_time_and_a_budget_holds_up_its_own_node_alone,
            reboots::a_host_that_is_killed_again_and_again_reboots_each_node_once,
            reboots::nodes_are_checked_and_each_that_is_not_proven_healthy_fails,
            tasks::a_script_runs_once_on_each_node_and_its_outputs_go_with_the_job,
            tasks::a_task_whose_pod_is_deleted_or_evicted_is_lost_and_not_begun_again,
            tasks::a_job_that_is_deleted_at_any_stage_leaves_nothing_of_its_tasks,
            tasks::a_task_goes_on_over_restarts_of_the_host_and_runs_once,
            tasks::a_namespace_of_tasks_that_is_missing_is_named_and_the_task_goes_on_once_it_is_there,
            hostile::a_misdeed_costs_its_own_target_and_nobody_else,
            bounding::no_more_targets_are_in_flight_than_parallelism_and_partition_allow,
            retrying::a_target_is_released_between_attempts_and_its_third_succeeds,
            pausing::a_refused_eviction_is_not_tried_again_while_the_job_is_paused,
            pausing::a_raised_partition_moves_only_what_waits_for_it,
            telling::conditions_and_events_tell_the_story_of_a_job,
            dry_runs::a_dry_run_shows_what_would_be_done_and_does_nothing,
            dry_runs::the_marks_of_a_dry_run_are_tried_and_not_set,
            dry_runs::a_dry_run_says_that_a_budget_allows_nothing,
        }
    };
}

/// Calls a macro with the scenarios in which only the host decides. These scenarios run in memory in each test run, and on a
/// real control plane in a soak.
#[macro_export]
macro_rules! host_scenarios {
    ($make:ident) => {
        $make! {
            flow_ends::a_create_that_only_meets_server_errors_blocks_its_step_alone,
            flow_late::a_create_that_comes_late_makes_no_other_job,
            flow_late::a_first_status_whose_answer_is_lost_is_told_of,
            flow_late::a_retry_by_hand_wins_over_the_time_to_live,
            flow_late::many_outcomes_whose_write_had_no_answer_outlive_the_host,
            flow_late::pods_that_cannot_be_listed_hold_up_their_own_step_alone,
            flow_late::records_of_what_is_over_are_written_by_no_new_term,
            flow_terms::a_new_leader_whose_view_is_old_starts_no_step_by_it,
            flow_terms::a_record_that_was_there_after_all_holds_what_is_counted,
            flow_terms::an_end_whose_write_had_no_answer_is_told_of_once,
            daemons::a_pause_after_failures_ends_with_a_higher_limit,
            large_daemons::a_tenth_of_the_nodes_at_once_holds_over_many_deaths_of_the_host,
            large_daemons::a_hundredth_of_the_nodes_may_fail_and_no_more,
            large_daemons::a_node_that_cannot_be_reached_frees_its_slot,
            collaset::marks_go_although_the_plugin_is_gone,
            collaset::marks_go_although_the_plugin_was_withdrawn,
            collaset::a_pod_that_is_itself_a_replacement_waits_and_is_replaced_then,
            collaset::one_of_two_jobs_lets_go_and_the_other_still_gets_its_new_pod,
            collaset::a_release_that_a_killed_host_still_owed_is_done,
            collaset::a_release_that_is_owed_is_done_although_the_view_of_the_pod_is_old,
            awaited::a_replacement_whose_set_is_scaled_down_says_that_no_pod_has_come,
            awaited::of_two_restarts_of_one_pod_the_second_names_the_request_that_it_waits_for,
            evicting::a_pod_that_was_scaled_up_meanwhile_is_nobodys_new_pod,
            evicting::a_pod_too_many_takes_the_place_of_a_target_that_none_was_made_for,
            evicting::a_target_whose_deployment_is_gone_does_not_wait_for_its_deadline,
            ending::a_target_whose_time_is_over_fails_and_leaves_nothing,
            ending::the_last_look_finds_a_success_that_the_watch_did_not_show,
            ending::an_unknown_action_is_told_once_and_its_job_can_be_deleted,
            deadlines::a_deadline_is_kept_while_no_partner_comes,
            deadlines::a_deadline_is_kept_although_the_plugin_asks_for_an_hour,
            lifecycle::a_pod_with_another_operation_is_waited_for,
            lifecycle::a_lifecycle_that_nobody_drives_is_shown_and_its_labels_go_with_the_job,
            lifecycle::a_container_that_cannot_be_restarted_fails_its_target,
            retrying::each_attempt_restarts_a_container_once,
            restarting::a_delay_goes_on_over_a_restart,
            restarting::a_job_stays_on_the_plugin_it_began_with_until_that_is_lost,
            unavailable::two_jobs_together_make_no_second_pod_unavailable,
            selecting::a_pod_that_was_made_anew_is_not_the_one_that_the_spec_names,
            selecting::a_selector_that_finds_nothing_waits_for_pods,
            panics::a_round_that_panics_is_made_again_and_no_other_job_notices,
            panics::a_reply_that_comes_after_a_panic_is_not_lost,
            panics::a_deadline_is_kept_after_a_panic_while_a_write_was_lost,
            records::a_last_status_write_that_the_server_fails_is_made_again,
            records::a_last_status_write_without_an_answer_is_found_made,
            records::a_last_status_write_that_never_arrived_is_made_again,
            records::a_record_whose_label_is_gone_is_found_by_the_next_host,
            records::targets_of_a_record_that_was_lost_while_no_host_ran_are_not_started_again,
            granting::a_job_starts_once_its_namespace_is_granted,
            granting::a_job_goes_on_with_a_plugin_that_is_withdrawn,
            granting::targets_in_flight_go_on_once_their_plugin_is_put_back,
            limits::targets_in_flight_stay_within_the_limit_of_the_grant,
            limits::a_job_that_rests_leaves_its_room_to_others,
            limits::an_exclusive_plugin_starts_no_pod_that_another_job_holds,
            limits::of_two_jobs_that_begin_on_one_pod_at_once_an_exclusive_plugin_takes_one,
            nodes::of_two_jobs_on_one_node_the_second_waits_for_the_first,
            nodes::a_node_is_let_go_although_its_plugin_is_gone,
            nodes::a_plugin_for_nodes_takes_no_pods,
            nodes::a_node_that_is_not_ready_is_worked_on_before_the_others,
            drains::a_pod_that_does_not_terminate_costs_its_own_node_its_time,
            drains::a_host_that_is_killed_while_it_drains_evicts_no_pod_twice,
            reboots::a_node_that_does_not_come_back_fails_by_what_is_seen_of_it,
            reboots::a_reboot_that_was_asked_for_is_not_taken_back_and_one_that_was_not_is_never_made,
            reboots::a_node_whose_cordon_is_taken_off_is_drained_again_before_it_reboots,
            reboots::of_two_jobs_that_reboot_one_node_each_does_once_it_has_the_node,
            tasks::a_script_that_fails_is_told_with_its_exit_code_and_the_end_of_its_output,
            tasks::a_job_that_vanishes_leaves_nothing_of_its_tasks,
            bounding::parallelism_is_a_share_that_can_be_raised_and_lowered_in_flight,
            bounding::with_fail_fast_the_rest_is_skipped_and_half_of_the_job_in_flight_goes_on,
            bounding::with_pause_nothing_starts_until_more_failures_are_tolerated,
            retrying::a_target_whose_last_attempt_fails_has_failed,
            retrying::no_attempt_begins_before_the_last_one_is_released,
            retrying::the_wait_between_attempts_goes_on_over_a_restart,
            pausing::what_is_in_flight_ends_while_the_job_is_paused,
            pausing::a_pause_holds_each_target_where_it_is_and_a_resumed_job_goes_on,
            pausing::a_deletion_ends_each_target_where_it_is,
            pausing::a_deadline_that_is_brought_forward_ends_what_has_started,
            dry_runs::a_dry_run_and_a_job_on_the_same_pods_do_not_notice_each_other,
        }
    };
}

/// Calls a macro with the path of every scenario of OpsJobs. These scenarios need their own cluster.
#[macro_export]
macro_rules! ops_scenarios {
    ($macro:ident) => {
        $macro! {
            ops_jobs::nodes_are_rebooted_and_each_phase_is_told,
            ops_jobs::of_two_jobs_on_one_node_the_second_fails_and_names_the_first,
            ops_jobs::a_job_that_is_stopped_deleted_or_out_of_time_lets_go_of_its_nodes,
            ops_jobs::as_many_nodes_may_fail_as_the_ratio_leaves,
            ops_jobs::a_child_that_somebody_deletes_fails_its_job,
            ops_jobs::nodes_are_checked_and_named_as_healthy_or_failed,
            ops_jobs::nodes_are_found_by_workload_and_workspace_and_busy_ones_are_spared,
            ops_jobs::a_pod_that_waits_chooses_no_node_for_a_reboot_by_workload,
            ops_jobs::the_watch_of_each_kind_of_the_host_has_figures,
            ops_jobs::a_spec_that_breaks_a_rule_fails_in_words_that_name_it,
            ops_jobs::a_job_whose_writer_was_asked_for_no_rights_does_nothing,
            addons::the_scripts_of_templates_run_on_each_node_once_and_in_order,
            addons::cordoned_nodes_of_an_addon_are_counted_as_skipped_in_its_result,
            ops_jobs::a_directory_that_is_not_granted_is_refused_before_anything_starts,
            addons::a_template_that_changes_meanwhile_runs_as_it_was,
            addons::a_busy_node_is_awaited_and_no_pod_is_evicted,
            addons::an_addon_that_is_stopped_amid_a_script_names_its_node,
            addons::a_node_whose_script_fails_says_how_and_loses_its_taint,
            exports::the_image_of_a_pod_is_in_the_registry_under_its_name_and_the_day,
            exports::an_export_that_cannot_be_says_why,
        }
    };
}

/// Calls a macro with the path of every scenario that reads logs. These scenarios run in memory only, because a real API
/// server without kubelets has no logs.
#[macro_export]
macro_rules! log_scenarios {
    ($macro:ident) => {
        $macro! {
            dumplogs::the_logs_of_all_runs_are_one_file_in_the_order_of_time,
            dumplogs::a_pod_whose_logs_cannot_be_read_is_named_and_costs_only_its_own,
            dumplogs::words_of_a_kubelet_in_place_of_a_log_are_told_and_are_no_lines,
            dumplogs::a_dumplog_that_cannot_be_says_why,
        }
    };
}
