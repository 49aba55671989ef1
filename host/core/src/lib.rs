//! All decisions of Oarlock: deterministic, without I/O, clock or chance; the time is an argument.
//!
//! Imports between the folders run one way, in the order in which they stand here.

/// A job and the form in which it is stored.
pub mod job {
    pub mod bound;
    pub(crate) mod conditions;
    pub mod dry_run;
    pub mod key;
    pub mod policy;
    pub mod progress;
    pub mod ranges;
    pub mod selected;
    pub mod selector;
    pub mod spec;
    pub mod state;
    pub mod task;
    pub mod time;
}

/// Objects, the cache of them, and the requests to a cluster.
pub mod cluster {
    pub mod adopt;
    mod compact;
    pub mod hold_keys;
    mod kind_cache;
    pub mod lifecycle;
    pub mod live_reads;
    pub mod memory;
    pub mod node;
    pub mod object;
    pub mod own;
    pub mod scripts;
    pub mod store;
    pub mod task_pod;
    pub mod writes;
}

/// A plugin's requests, grants and answers.
pub mod plugin {
    pub use oarlock_contract::{authorize, grant, host_path, manifest, names, proposal, schema, task};

    pub mod lookup;
    pub mod visit;
}

/// Tables and queues that the jobs of one term share.
pub mod shared {
    pub mod budgets;
    pub mod claims;
    pub mod cleanup;
    pub mod disrupted;
    pub mod exclusive;
    pub mod holds;
    pub mod orphans;
    pub mod quota_key;
    pub mod reads;
    pub mod record_pace;
    pub mod successors;
    pub mod tables;
    pub mod wake_index;
    pub mod wakers;
    pub mod write_queue;
}

/// One pass over one job.
pub mod round {
    pub mod agenda;
    mod availability;
    pub mod brakes;
    pub mod calls;
    pub mod change_row;
    mod charge;
    pub mod conditions;
    pub mod context;
    pub mod decide;
    pub mod decided;
    pub mod drain;
    mod ending;
    pub mod events;
    mod exclusive;
    mod final_check;
    pub mod finalize;
    pub mod fit;
    mod held_back;
    pub mod judge;
    pub mod left_behind;
    mod lifecycle;
    pub mod memory;
    mod mutations;
    pub mod pace;
    pub mod plan;
    pub mod planned;
    mod proposed;
    pub mod refresh;
    mod release;
    pub mod results;
    mod room;
    pub mod selection;
    pub mod shards;
    pub mod start_bounds;
    pub mod status;
    pub mod target;
    pub mod target_memory;
    mod task_result;
    pub mod task_settings;
    mod task_template;
    mod tasks;
    mod tell;
    mod trial;
    pub mod unlisted;
    mod unread;
}

/// What JobFlow and DaemonJob share: building a child and following it through its attempts.
pub mod child {
    pub mod build;
    pub mod canonical;
    pub mod changes;
    pub mod children;
    pub mod closing;
    pub mod course;
    pub mod failure;
    pub mod fields;
    pub mod globals;
    pub mod header;
    pub mod imported;
    pub mod lost;
    pub mod merge;
    pub mod name;
    pub mod node;
    pub mod parent;
    pub mod plan;
    pub mod pods;
    pub mod progress;
    pub mod refused;
    pub mod settings;
    pub mod status;
    pub mod told;
    pub mod unit;
    pub mod verdict;
    pub mod view;
    pub mod waiting;
}

/// One pass over a JobFlow or a JobTemplate.
pub mod flow {
    mod graph;
    mod handled;
    pub mod plan;
    pub mod spec;
    pub mod template;
    mod turns;
}

/// One pass over a DaemonJob.
pub mod daemon {
    mod node_set;
    pub mod plan;
    mod readiness;
    pub mod spec;
}

/// An OpsJob: the targets of one administrative task, and what their failures mean.
pub mod ops_job {
    pub mod access;
    pub mod addon;
    pub mod body;
    mod check;
    pub mod child;
    pub mod events;
    pub mod export;
    pub mod gone;
    pub mod holders;
    pub mod inputs;
    pub mod job_id;
    mod json_tree;
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
    pub mod row_meter;
    pub mod running_image;
    pub mod spec;
    pub mod stored;
    pub mod summary;
    pub mod targets;
    mod told;
    pub mod verdict;
    pub mod view;
    pub mod workload;
    pub mod write_meter;
}
