//! The JobFlows, JobTemplates, DaemonJobs and JobRecords that the API server accepts or refuses, and the words of each refusal.
//!
//! Each case runs on the in-memory API and on a real API server. Source: docs/jobflow.md 1, 10.

#[cfg(test)]
mod accepted;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod server;

/// Makes two tests of each case: one on an in-memory cluster, one on a real API server.
#[cfg(test)]
macro_rules! on_both {
    ($($module:ident :: $case:ident),* $(,)?) => {
        mod in_memory {
            $(
                #[tokio::test(start_paused = true)]
                async fn $case() {
                    crate::$module::$case(&crate::server::in_memory().await).await;
                }
            )*
        }
        mod real {
            $(
                #[tokio::test]
                async fn $case() {
                    crate::$module::$case(&crate::server::real().await).await;
                }
            )*
        }
    };
}

#[cfg(test)]
on_both![
    refused::a_bad_name_of_a_step_is_refused_by_name,
    refused::a_bad_dependency_is_refused_by_step,
    refused::a_step_without_one_kind_of_work_is_refused,
    refused::fields_that_do_not_fit_together_are_refused,
    refused::too_much_of_anything_is_refused,
    refused::wrong_numbers_of_a_daemon_job_are_refused,
    refused::an_operation_needs_the_right_to_create_operation_jobs,
    refused::an_operation_has_no_action_of_ops_jobs_alone,
    refused::whatever_makes_jobs_needs_the_right_to_create_jobs,
    refused::a_retry_needs_the_rights_of_the_first_start,
    accepted::objects_full_of_nulls_are_accepted_twice,
    accepted::repeated_dependencies_count_once,
    accepted::an_empty_flow_is_accepted_in_all_its_forms,
    accepted::unknown_fields_of_a_job_survive,
    accepted::an_error_handler_may_be_anything,
    accepted::five_hundred_steps_of_sixty_dependencies_are_accepted,
    accepted::a_full_flow_and_a_full_daemon_job_are_stored_as_written,
    accepted::status_and_records_are_stored_as_written,
    accepted::tables_have_the_columns_of_the_original,
];

/// Tests that need a cluster on which the policies are not in force yet.
#[cfg(test)]
mod stored_before {
    #[tokio::test(start_paused = true)]
    async fn an_invalid_flow_takes_labels_and_status_and_a_spec_only_when_valid() {
        crate::accepted::an_invalid_flow_stored_before(&crate::server::bare_in_memory()).await;
    }

    mod real {
        #[tokio::test]
        async fn an_invalid_flow_takes_labels_and_status_and_a_spec_only_when_valid() {
            let (_plane, client) = crate::server::bare_real().await;
            crate::accepted::an_invalid_flow_stored_before(&client).await;
        }
    }
}
