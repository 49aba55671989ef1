//! The requests of a plugin in words, for people who decide whether to grant them.

use crate::grant::{ANY_HOST_PATH, ANY_REGISTRY, ScriptRule, TaskRule};
use crate::manifest::Manifest;

/// One request of a plugin in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right<'a> {
    /// The request, such as `evict v1 Pod`.
    pub text: String,
    /// The plugin's reason for the request.
    pub reason: &'a str,
}

/// Returns the requests of a manifest in words: first the reads, then the writes, then the tasks.
pub fn rights(manifest: &Manifest) -> Vec<Right<'_>> {
    let reads = manifest.reads.iter().map(|rule| {
        let fields = if rule.fields.is_empty() { "metadata".to_owned() } else { rule.fields.join(", ") };
        Right { text: format!("read {} {}: {fields}", rule.api_version, rule.kind), reason: &rule.reason }
    });
    let writes = manifest.writes.iter().map(|rule| {
        let marks = [
            ("labels", &rule.labels),
            ("annotations", &rule.annotations),
            ("finalizers", &rule.finalizers),
            ("subresources", &rule.subresources),
        ];
        let named = marks.into_iter().filter(|(_, names)| !names.is_empty());
        let named: String = named.map(|(what, names)| format!("; {what} {}", names.join(", "))).collect();
        let text = format!("{} {} {}{named}", rule.verb.word(), rule.api_version, rule.kind);
        Right { text, reason: &rule.reason }
    });
    let tasks = manifest.tasks.iter().map(|rule| Right { text: task_text(rule), reason: &rule.reason });
    reads.chain(writes).chain(tasks).collect()
}

/// Returns a request for tasks in words.
fn task_text(rule: &TaskRule) -> String {
    let builtins = rule.builtins.iter().map(|name| format!("; builtin {name}"));
    let scripts = match rule.scripts {
        ScriptRule::None => None,
        ScriptRule::Templates => Some("; scripts of templates".to_owned()),
        ScriptRule::Inputs => Some("; scripts of templates and of jobs".to_owned()),
        ScriptRule::Any => Some("; scripts of any text".to_owned()),
    };
    let paths = rule.host_paths.iter().map(|path| match path.as_str() {
        ANY_HOST_PATH => "; hostPaths that the grant names".to_owned(),
        path => format!("; hostPath {path}"),
    });
    let capabilities = rule.capabilities.iter().map(|name| format!("; capability {name}"));
    let registries = rule.registries.iter().map(|registry| match registry.as_str() {
        ANY_REGISTRY => "; registries that the grant names".to_owned(),
        registry => format!("; registry {registry}"),
    });
    let named = builtins.chain(scripts).chain(paths).chain(capabilities).chain(registries);
    format!("task {}{}", rule.name, named.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_told_with_the_commands_scripts_and_directories_that_they_mean() {
        let manifest = br#"{"schema": 1, "name": "x", "version": "1.0.0", "action": "X", "target": ["Pod"], "tasks": [
            {"name": "run-on-node", "builtins": ["reboot"], "reason": "a"},
            {"name": "run-on-node", "scripts": true, "reason": "b"},
            {"name": "check-pod", "hostPaths": ["/data", "/"], "capabilities": ["DAC_READ_SEARCH"], "reason": "c"},
            {"name": "copy-image", "reason": "d"}]}"#;
        let manifest = Manifest::parse(manifest).unwrap();
        let lines = [
            "task run-on-node; builtin reboot",
            "task run-on-node; scripts of any text",
            "task check-pod; hostPath /data; hostPaths that the grant names; capability DAC_READ_SEARCH",
            "task copy-image",
        ];
        let told: Vec<String> = rights(&manifest).into_iter().map(|right| right.text).collect();
        assert_eq!(told, lines);
    }
}
