//! What a plugin does at its calls: each misdeed of `tests/hostile`, in each function where it differs.

use super::{Begin, Misfit, Told};

/// In `operate`, and what becomes of the target.
const OPERATE: [(&str, &str); 27] = [
    ("trap", "Failed/PluginTrapped"),
    ("loop", "Failed/PluginLimitExceeded"),
    ("memory-bomb", "Failed/PluginLimitExceeded"),
    // One of two stacks is full first: the engine's, or the guest's own.
    ("deep-recursion", "Failed/Plugin"),
    ("huge-output", "Failed/PluginLimitExceeded"),
    ("many-mutations", "Failed/PluginLimitExceeded"),
    ("many-events", "Failed/PluginLimitExceeded"),
    ("log-flood", "Failed/PluginLimitExceeded"),
    ("call-flood", "Failed/PluginLimitExceeded"),
    ("huge-extra", "Failed/PluginLimitExceeded"),
    ("host-extra", "Failed/MutationDenied"),
    ("undeclared-field", "Failed/NotDeclared"),
    ("undeclared-kind", "Failed/NotDeclared"),
    ("undeclared-relation", "Failed/NotDeclared"),
    ("ungranted-mutation", "Failed/MutationDenied"),
    ("foreign-object", "Failed/MutationDenied"),
    ("foreign-namespace", "Failed/MutationDenied"),
    ("foreign-uid", "Failed/MutationDenied"),
    ("path-trick-name", "Failed/MutationDenied"),
    ("control-characters", "Failed/MutationDenied"),
    ("invalid-utf8", "Failed/PluginTrapped"),
    ("unknown-mutation", "Failed/MutationDenied"),
    ("garbled-json", "Failed/PluginTrapped"),
    ("another-label", "Processing/NotConverging"),
    ("fail", "Failed/Hostile"),
    ("retry", "Processing/Hostile"),
    ("nonsense", "Failed/UnknownDeed"),
];

/// In `progress`.
const PROGRESS: [(&str, &str); 6] = [
    ("trap", "Failed/PluginTrapped"),
    ("loop", "Failed/PluginLimitExceeded"),
    ("memory-bomb", "Failed/PluginLimitExceeded"),
    ("hurry", "Failed/DeadlineExceeded"),
    ("dawdle", "Failed/DeadlineExceeded"),
    ("garbled-end", "Failed/PluginLimitExceeded"),
];

/// In `release`: an event on the job says so.
const RELEASE: [&str; 8] =
    ["trap", "loop", "memory-bomb", "huge-output", "many-mutations", "ungranted-mutation", "fail", "retry"];

/// All of them.
pub fn table() -> Vec<Misfit> {
    let visits = |function: &'static str, all: &[(&'static str, &'static str)]| {
        let one = |(word, told): &(&'static str, &'static str)| {
            let what = format!("{word}-in-{function}");
            Misfit::new(what.clone(), Begin::Misdeed(what), Told::Target(told))
        };
        all.iter().map(one).collect::<Vec<_>>()
    };
    let release = RELEASE.map(|word| {
        Misfit::new(format!("{word}-in-release"), Begin::InRelease(word.to_owned()), Told::Event("ReleaseTargetFailed"))
    });
    visits("operate", &OPERATE).into_iter().chain(visits("progress", &PROGRESS)).chain(release).collect()
}
