//! A plugin that reads ConfigMaps beside its target, although the host's role does not allow it. It does nothing and
//! succeeds at once. A host whose role lacks the kind must report that, and must serve every other plugin.

use oarlock_sdk::{Action, Job, Proposal, Registration, Relation, Report, Result, Target, export};

/// The action `Reader`.
#[derive(Debug)]
pub struct Reader;

impl Action for Reader {
    fn setup() -> Result<Registration> {
        Ok(Registration::new().relation(Relation::objects("settings", "v1", "ConfigMap").by_label("reader.test/of")))
    }

    fn operate(_: &Job, _: &Target) -> Result<Proposal> {
        Ok(Proposal::new())
    }

    fn progress(_: &Job, _: &Target) -> Result<Report> {
        Ok(Report::succeeded())
    }
}

export!(Reader, manifest = include_str!("manifest.json"));
