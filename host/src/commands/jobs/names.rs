//! The names of jobs and flows in the arguments of commands, such as `web`, `opj/web` or `jf/web`.
//!
//! The words before a name come from the CustomResourceDefinitions, so they are those of kubectl.

use std::sync::LazyLock;

use oarlock_view::FlowKind;

use crate::manifests::NamedKind;

/// A kind that `oarlock get` or `oarlock watch` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShownKind {
    /// OperationJob.
    Operation,
    /// OpsJob.
    Ops,
    /// JobFlow or DaemonJob.
    Flow(FlowKind),
}

impl ShownKind {
    const ALL: [Self; 4] = [Self::Operation, Self::Ops, Self::Flow(FlowKind::JobFlow), Self::Flow(FlowKind::DaemonJob)];

    /// Returns the CustomResourceDefinition of the kind, as YAML.
    const fn definition(self) -> &'static str {
        match self {
            Self::Operation => oarlock_api::OPERATION_JOB_CRD,
            Self::Ops => oarlock_api::OPS_JOB_CRD,
            Self::Flow(FlowKind::JobFlow) => oarlock_api::JOB_FLOW_CRD,
            Self::Flow(FlowKind::DaemonJob) => oarlock_api::DAEMON_JOB_CRD,
        }
    }

    /// Returns the kind that a word before a name means: its singular, its plural or its short name, in any case, alone or with the group.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        static NAMED: LazyLock<Vec<(ShownKind, NamedKind)>> = LazyLock::new(|| {
            let named = |kind: ShownKind| Some((kind, NamedKind::read(kind.definition())?));
            ShownKind::ALL.into_iter().filter_map(named).collect()
        });
        NAMED.iter().find(|(_, named)| named.is_called(word)).map(|(kind, _)| *kind)
    }
}

/// The kind and the name of a JobFlow or DaemonJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) struct FlowName {
    pub(in crate::commands) kind: FlowKind,
    pub(in crate::commands) name: String,
}

/// The object that `oarlock watch` follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) enum WatchedName {
    /// A job.
    Job(JobName),
    /// A JobFlow or a DaemonJob.
    Flow(FlowName),
}

/// The kind and the name of a job that `oarlock get` prints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) enum JobName {
    /// The OperationJob of this name.
    Operation(String),
    /// The OpsJob of this name.
    Ops(String),
}

/// Parses the name of an object: `NAME`, `opj/NAME`, `ops/NAME`, `jf/NAME` or `dj/NAME`.
pub(in crate::commands) fn watched_name(text: &str) -> Result<WatchedName, String> {
    let (word, name) = text.split_once('/').unwrap_or(("opj", text));
    let Some(kind) = ShownKind::of_word(word) else {
        return Err(format!("{word:?} is no kind of job: write opj/{name}, ops/{name}, jf/{name} or dj/{name}"));
    };
    if name.is_empty() || name.contains('/') {
        return Err(format!("write a name, or {word}/NAME"));
    }
    let name = name.to_owned();
    Ok(match kind {
        ShownKind::Operation => WatchedName::Job(JobName::Operation(name)),
        ShownKind::Ops => WatchedName::Job(JobName::Ops(name)),
        ShownKind::Flow(kind) => WatchedName::Flow(FlowName { kind, name }),
    })
}

/// Parses the name of a job: `NAME`, `opj/NAME` or `ops/NAME`.
pub(in crate::commands) fn got_name(text: &str) -> Result<JobName, String> {
    match watched_name(text)? {
        WatchedName::Job(name) => Ok(name),
        WatchedName::Flow(FlowName { kind, name }) => {
            let short = kind.short();
            Err(format!(
                "{short}/{name} is a {}: `oarlock watch {short}/{name}` follows it, and `oarlock graph` draws it",
                kind.word()
            ))
        }
    }
}

/// Parses the kind and the name in `jf/NAME` or `dj/NAME`.
pub(in crate::commands) fn flow_name(text: &str) -> Result<FlowName, String> {
    if !text.contains('/') {
        return Err(format!("write jf/{text} or dj/{text}"));
    }
    match watched_name(text)? {
        WatchedName::Flow(named) => Ok(named),
        WatchedName::Job(_) => Err(format!("{text} is neither a JobFlow nor a DaemonJob: write jf/NAME or dj/NAME")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(name: &str) -> Result<WatchedName, String> {
        Ok(WatchedName::Job(JobName::Operation(name.to_owned())))
    }

    #[test]
    fn every_kind_has_its_own_words() {
        for kind in ShownKind::ALL {
            let named = NamedKind::read(kind.definition()).unwrap();
            let group = format!("{}.{}", named.plural, named.group);
            for word in [&named.plural, &named.plural.to_uppercase(), &group] {
                assert_eq!(ShownKind::of_word(word), Some(kind), "{word}");
            }
        }
        for word in ["", "pod", "jobtemplate", "opsjobs.example.com", "opsjob."] {
            assert_eq!(ShownKind::of_word(word), None, "{word}");
        }
    }

    #[tokio::test]
    async fn each_kind_of_the_engine_can_be_named() {
        for kind in crate::kinds::tests::controller().await.kinds() {
            let plural = crate::kinds::plural(&**kind);
            assert!(ShownKind::of_word(&plural).is_some(), "{plural}: add it to `ShownKind`");
        }
    }

    #[test]
    fn a_job_is_named_with_and_without_its_kind() {
        for text in ["web", "opj/web", "OperationJob/web", "operationjobs.apps.kusionstack.io/web"] {
            assert_eq!(watched_name(text), operation("web"), "{text}");
        }
        assert_eq!(got_name("OpsJob/web"), Ok(JobName::Ops("web".to_owned())));
        for text in ["pod/web", "opj/", "opj/a/b", "ops/", "ops/a/b", ""] {
            assert!(watched_name(text).is_err() && got_name(text).is_err(), "{text}");
        }
        let told = got_name("jf/web").unwrap_err();
        assert!(told.contains("jf/web is a JobFlow: `oarlock watch jf/web`"), "{told}");
    }

    #[test]
    fn a_flow_is_named_with_its_kind() {
        for text in ["jf/web", "JobFlow/web", "jobflows.api.practice.com/web"] {
            assert_eq!(flow_name(text), Ok(FlowName { kind: FlowKind::JobFlow, name: "web".to_owned() }), "{text}");
        }
        assert_eq!(flow_name("dj/web").map(|named| named.kind), Ok(FlowKind::DaemonJob));
        for text in ["web", "opj/web", "jf/", "jf/a/b", ""] {
            assert!(flow_name(text).is_err(), "{text}");
        }
    }
}
