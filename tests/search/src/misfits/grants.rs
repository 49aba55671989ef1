//! Grants of a misbehaving plugin. A grant affects its own plugin only, and a text that is no grant has no effect.

use super::{Begin, Misfit, Told};

/// The spec of the hostile plugin's grant, up to its settings.
macro_rules! granted {
    ($more:literal) => {
        concat!(
            "  anyVersion: true\n  namespaces: [\"*\"]\n  reads: [{apiVersion: v1, kind: Pod}]\n  writes:\n",
            "  - {verb: metadata, apiVersion: v1, kind: Pod, labels: [\"hostile.test/*\"]}\n",
            "  - {verb: evict, apiVersion: v1, kind: Pod}\n  - {verb: patch, apiVersion: v1, kind: Pod}\n",
            "  - {verb: create, apiVersion: v1, kind: ConfigMap}\n  ",
            $more,
            "\n"
        )
    };
}

fn grant(name: &str, spec: &'static str, told: Told) -> Misfit {
    Misfit::new(name, Begin::Grant(spec), told)
}

/// Returns settings that make `setup` fail.
fn setups() -> Vec<Misfit> {
    [
        ("trap", granted!("config: {setup: trap}"), "SetupTrapped"),
        ("loop", granted!("config: {setup: loop}"), "SetupTrapped"),
        ("memory-bomb", granted!("config: {setup: memory-bomb}"), "SetupTrapped"),
        ("deep-recursion", granted!("config: {setup: deep-recursion}"), "SetupTrapped"),
        ("huge-output", granted!("config: {setup: huge-output}"), "SetupTrapped"),
        ("many-relations", granted!("config: {setup: many-relations}"), "SetupTrapped"),
        ("same-name", granted!("config: {setup: same-name}"), "RegistrationRefused"),
        ("undeclared-kind", granted!("config: {setup: undeclared-kind}"), "RegistrationRefused"),
        ("unknown-relation", granted!("config: {setup: unknown-relation}"), "SetupTrapped"),
        ("fail", granted!("config: {setup: fail}"), "SetupFailed"),
        ("retry", granted!("config: {setup: retry}"), "SetupFailed"),
    ]
    .into_iter()
    .map(|(word, spec, reason)| grant(&format!("{word}-in-setup"), spec, Told::Plugin(reason)))
    .collect()
}

/// Returns all misfits of this module.
pub fn table() -> Vec<Misfit> {
    let nowhere = "  anyVersion: true\n  reads: [{apiVersion: v1, kind: Pod}]\n";
    let lacking = "  anyVersion: true\n  namespaces: [\"*\"]\n  reads: [{apiVersion: v1, kind: Pod}]\n";
    let pinned =
        "  digest: sha256:0000000000000000000000000000000000000000000000000000000000000000\n  namespaces: [\"*\"]\n";
    let elsewhere = concat!(
        "  anyVersion: true\n  namespaces: [elsewhere]\n  reads: [{apiVersion: v1, kind: Pod}]\n  writes:\n",
        "  - {verb: metadata, apiVersion: v1, kind: Pod, labels: [\"*\"]}\n  - {verb: evict, apiVersion: v1, kind: Pod}\n",
        "  - {verb: patch, apiVersion: v1, kind: Pod}\n  - {verb: create, apiVersion: v1, kind: ConfigMap}\n"
    );
    let refused = Told::Condition("Valid", "False/NamespaceNotAllowed", "scenario");
    let more = vec![
        grant("a grant for no namespace", nowhere, Told::Plugin("GrantMissing")),
        grant("a grant that lacks a line", lacking, Told::Plugin("GrantMissing")),
        grant("a grant of another component", pinned, Told::Plugin("GrantMissing")),
        grant("a grant for another namespace", elsewhere, refused),
        grant("settings of another type", granted!("config: {setup: 7}"), Told::Plugin("ConfigInvalid")),
        grant("settings that nobody knows", granted!("config: {colour: red}"), Told::Plugin("ConfigInvalid")),
        grant("more time than there is", granted!("limits: {callMilliseconds: 4294967295}"), Told::Ends("Succeeded")),
        grant("no memory at all", granted!("limits: {memoryMiB: 0}"), Told::Plugin("SetupTrapped")),
        grant("no answer at all", granted!("limits: {outputBytes: 0}"), Told::Ends("Failed")),
        grant("no target in flight", granted!("limits: {targetsInFlight: 0}"), Told::Target("Pending")),
        grant("more memory than there is", granted!("limits: {memoryMiB: 4294967295}"), Told::Ends("Succeeded")),
        grant("settings that are a list", granted!("config: [1]"), Told::Refused("`config` must be an object")),
        grant("a misspelt field", granted!("anyVersoin: true"), Told::Refused("anyVersoin")),
        grant("a star in the middle", granted!("tasks: [{name: \"a*b\"}]"), Told::Refused("one `*`, at its end")),
        grant("a negative limit", granted!("limits: {memoryMiB: -1}"), Told::Refused("hostile")),
        grant("a text that is no YAML", "  ]]}: [\n", Told::Refused("YAML")),
        grant(
            "a second grant of the same plugin",
            "  anyVersion: true\n---\napiVersion: oarlock.dev/v1alpha1\nkind: ActionPlugin\nmetadata: {name: hostile}\n",
            Told::Refused("two grants for plugin hostile"),
        ),
    ];
    setups().into_iter().chain(more).collect()
}
