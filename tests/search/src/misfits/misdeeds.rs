//! The misdeeds of a plugin in its calls: each misdeed of `tests/plugins/hostile`, in each function where the effect differs.

use super::{Begin, Misfit, Told};

/// The misdeeds in `operate`, with the outcome of the target.
const OPERATE: [(&str, &str); 27] = [
    ("trap", "Failed/PluginTrapped"),
    ("loop", "Failed/PluginLimitExceeded"),
    ("memory-bomb", "Failed/PluginLimitExceeded"),
    // The engine's stack or the guest's own stack overflows first, and the reason differs.
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

/// The misdeeds in `progress`, with the outcome of the target.
const PROGRESS: [(&str, &str); 6] = [
    ("trap", "Failed/PluginTrapped"),
    ("loop", "Failed/PluginLimitExceeded"),
    ("memory-bomb", "Failed/PluginLimitExceeded"),
    ("hurry", "Failed/DeadlineExceeded"),
    ("dawdle", "Failed/DeadlineExceeded"),
    ("garbled-end", "Failed/PluginLimitExceeded"),
];

/// The misdeeds in `release`. The host reports them with an event on the job.
const RELEASE: [&str; 8] =
    ["trap", "loop", "memory-bomb", "huge-output", "many-mutations", "ungranted-mutation", "fail", "retry"];

/// Returns all misfits of this module.
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
