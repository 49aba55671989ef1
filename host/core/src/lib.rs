//! All decisions of Oarlock: deterministic, without I/O, clock or chance; the time is an argument.
//!
//! Imports between the folders run one way, in the order in which they stand here.

/// What a job is and how it is stored.
pub mod job {
    pub mod ranges;
    pub mod spec;
    pub mod state;
}

/// Objects, the cache of them, and what is asked of a cluster.
pub mod cluster {
    mod compact;
    pub mod object;
    pub mod store;
    pub mod writes;
}

/// What a plugin asks for, may do and answers.
pub mod plugin {
    pub mod authorize;
    pub mod grant;
    pub mod lookup;
    pub mod manifest;
    pub mod proposal;
    pub mod visit;
}

/// What the jobs of one term share.
pub mod shared {
    pub mod claims;
    pub mod cleanup;
    pub mod holds;
    pub mod orphans;
    pub mod reads;
    pub mod wake_index;
}

/// One pass over one job.
pub mod round {
    pub mod calls;
    pub mod conditions;
    pub mod decide;
    pub mod events;
    pub mod finalize;
    pub mod judge;
    pub mod memory;
    pub mod mutations;
    pub mod plan;
    pub mod refresh;
    pub mod results;
    pub mod standing;
    pub mod status;
    pub mod target;
}
