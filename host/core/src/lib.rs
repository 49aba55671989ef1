//! Makes all decisions of Oarlock. The code is deterministic: it does no I/O, reads no clock and draws no random numbers. The time is an argument.
//!
//! Each top folder imports only from top folders above it in this file. The folders inside `operation_job` may import each other.

/// API objects as the host keeps them, and the parts of their JSON that the host reads.
pub mod object {
    pub mod api_object;
    pub mod bound;
    pub mod canonical;
    pub(crate) mod compact;
    pub mod fields;
    pub mod hold_keys;
    pub mod key;
    pub mod memory;
    pub mod node;
    pub mod own;
    pub mod quota_key;
    pub mod ranges;
    pub mod task_pod;
    pub mod time;
}

/// The cache of API objects.
pub mod cache {
    pub(crate) mod kind_cache;
    pub mod object_cache;
    pub mod store;
}

/// Requests to a cluster, and the results of the requests.
pub mod requests {
    pub mod adopt;
    pub mod backoff;
    pub mod live_reads;
    pub mod reads;
    pub mod scripts;
    pub mod selector;
    pub mod writes;
}

/// Parts that the statuses of all kinds share.
pub mod status {
    pub(crate) mod conditions;
    pub mod policy;
    pub mod record_rate_limit;
}

/// The requests, grants and answers of a plugin.
pub mod plugin {
    pub use oarlock_contract::{authorize, grant, host_path, manifest, names, proposal, rights, schema, task};

    pub mod lookup;
    pub mod object_json;
    pub mod replay_reads;
    pub mod trap_budget;
    pub mod visit;
    pub mod visit_note;
    pub mod visit_recorder;
}

/// The interface between the engine and the kinds whose plans are pure functions.
pub mod kind {
    pub mod locks;
    pub mod plan;
    pub mod plan_kind;
}

/// ActionPlugin: the grant of a plugin as an object, and the state of the plugin in its status.
pub mod action_plugin {
    pub mod facts;
    pub mod kind;
    pub mod status;
    #[cfg(test)]
    mod status_tests;
    pub mod stored;
}

/// OperationJob: the spec and state of a job, the tables that jobs share in one term, and the rounds.
pub mod operation_job {
    pub mod cleanup;
    mod dry_run;
    pub mod holds;
    pub mod lifecycle;
    pub mod progress;
    pub mod selected;
    pub mod spec;
    pub mod state;
    pub mod write_queue;

    /// One round: one reconcile of one job.
    pub mod round {
        pub mod calls;
        pub mod change_row;
        mod charge;
        pub mod conditions;
        pub mod context;
        pub mod decide;
        pub mod decided;
        pub mod drain;
        pub mod drain_memory;
        mod dry_run_target;
        pub mod due_times;
        mod ending;
        pub mod events;
        mod exclusive;
        pub mod finalize;
        pub mod fit;
        mod held_back;
        mod job_events;
        pub mod judge;
        mod lifecycle;
        pub mod memory;
        mod mutations;
        pub mod open_round;
        pub mod operation_records;
        pub mod pace;
        pub mod plan;
        pub mod planned;
        mod proposed;
        pub mod refresh;
        mod release;
        pub mod results;
        pub mod selection;
        pub mod status;
        pub mod target;
        pub mod target_memory;
        pub mod unlisted;
        mod unread;
        pub mod visit;

        /// The starts of targets, and the bounds on them.
        pub mod starts {
            pub mod bounds;
            pub mod memory;
        }
    }

    /// Tables that the jobs of one term share.
    pub mod shared {
        pub mod budgets;
        pub mod claims;
        pub mod disrupted;
        pub mod exclusive;
        pub mod reads;
        pub mod successors;
        pub mod tables;
        pub mod wake_index;
        pub mod wakers;
    }

    /// Tasks of plugins, which run in pods or in the host.
    pub mod tasks {
        pub(crate) mod result;
        pub mod settings;
        pub mod stored;
        pub(crate) mod target_tasks;
        pub(crate) mod template;
    }
}

/// Parts that JobFlow and DaemonJob share: building a child and following it through its attempts.
pub mod attempts {
    pub mod build;
    pub mod changes;
    pub mod children;
    pub mod failure;
    pub mod follow;
    pub mod globals;
    pub mod header;
    pub mod imported;
    pub mod live_reads;
    pub mod lost;
    pub mod merge;
    pub mod name;
    pub mod node;
    pub mod owner_summary;
    pub mod parent;
    pub mod plan;
    pub mod pods;
    pub mod progress;
    pub mod refused;
    pub mod results;
    pub mod retry_and_cleanup;
    pub mod settings;
    pub mod status;
    pub mod transition_events;
    pub mod unit;
    pub mod view;
    pub mod waiting;
    pub mod writes;
}

/// JobTemplate: a stored template of a job.
pub mod job_template {
    pub mod template;
}

/// One reconcile of a JobFlow.
pub mod job_flow {
    mod graph;
    mod handled;
    pub mod plan;
    mod scheduling;
    pub mod spec;
}

/// One reconcile of a DaemonJob.
pub mod daemon_job {
    mod node_set;
    pub mod plan;
    mod readiness;
    pub mod spec;
}

/// OpsJob: the targets of one administrative task, and the meaning of their failures.
pub mod ops_job {
    pub mod access;
    pub mod addon;
    pub mod body;
    mod check;
    pub mod child;
    pub mod create_decision;
    pub mod events;
    pub mod export;
    pub mod facts;
    pub mod found;
    pub mod gone;
    pub mod inputs;
    pub mod job_id;
    mod json_tree;
    pub mod kind;
    mod messages;
    pub mod names;
    mod nearest;
    pub mod node;
    pub mod outcomes;
    pub mod outline;
    pub mod phases;
    pub mod plan;
    pub mod pod_targets;
    pub mod policy;
    pub mod published;
    pub mod quota;
    pub mod ratio;
    pub mod refusal;
    mod requests;
    pub mod row_meter;
    pub mod running_image;
    pub mod spec;
    pub mod stage;
    pub mod stored;
    pub mod summary;
    pub mod targets;
    pub mod view;
    pub mod workload;
    pub mod write_meter;
}
