//! Replays recorded visits with a plugin file, without a cluster.
//!
//! Each record is played in a fresh instance. The replay has no limit on time, because time is the only input of a call that no record can hold.

use std::sync::Arc;

use oarlock_contract::limits::{CAPS, PluginLimits};
use oarlock_contract::replayed::{AnswerDifference, differences};
use oarlock_contract::visit_record::{RecordedAnswer, VisitRecord};
use oarlock_core::plugin::grant::Grant;
use oarlock_core::plugin::manifest::Manifest;
use oarlock_core::plugin::replay_reads::ReplayReads;
use oarlock_core::plugin::visit_note::{config_digest, recorded_answer};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use crate::load::inspect::inspect;
use crate::plugin::Plugin;
use crate::plugins::{Options, Plugins, PluginsError};
use crate::rejection::Rejection;
use crate::run::guest::PluginSettings;
use crate::run::log_budget::LogBudget;
use crate::run::session::Session;
use crate::run::warm_instance::CallContext;
use crate::status::PluginState;

/// The time after which a replayed call counts as endless, in milliseconds. The highest limit of a host is 5 s.
const ENDLESS_MS: u32 = 60_000;

/// The reason why a plugin file replays nothing.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The plugins could not be started.
    #[error("failed to start the plugin")]
    Start(#[from] PluginsError),
    /// The file is not a plugin.
    #[error("{}: {}", .0.reason, .0.sentence)]
    Rejected(Rejection),
    /// The file has no manifest.
    #[error("the file has no manifest: write it with the SDK or `oarlock plugin annotate`")]
    NoManifest,
    /// The host would not serve the plugin, even with everything granted.
    #[error("the plugin does not serve: {reason}: {message}")]
    NotServing {
        /// The reason.
        reason: String,
        /// The reason in words, with the fix.
        message: String,
    },
    /// The record is about another plugin.
    #[error("the record is of the plugin {recorded}, and the file is the plugin {own}; name the file of {recorded}")]
    OtherPlugin {
        /// The plugin of the record.
        recorded: String,
        /// The plugin of the file.
        own: String,
    },
}

/// The verdict of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ReplayVerdict {
    /// The plugin gave the recorded answer.
    Same,
    /// The plugin gave another answer.
    DifferentAnswer {
        /// The places where the answers differ.
        differences: Vec<AnswerDifference>,
    },
    /// The plugin made a read that the record lacks, which ended the replay.
    AskedForSomethingElse {
        /// The read.
        read: String,
        /// Why the record does not answer the read.
        why: String,
    },
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayedVisit {
    /// The verdict.
    #[serde(flatten)]
    pub verdict: ReplayVerdict,
    /// The ways in which the replay is not the recorded visit, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The answer of the plugin in the replay.
    #[serde(skip)]
    pub answer: RecordedAnswer,
}

/// A plugin file that replays records.
pub struct Replayer {
    plugin: Arc<Plugin>,
    _plugins: Plugins,
}

/// The plays of records in one instance, one after the other.
pub struct WarmReplay<'a> {
    replayer: &'a Replayer,
    session: Session,
}

impl Replayer {
    /// Loads a component with everything granted that it asks for, and with the operator's settings.
    ///
    /// # Errors
    ///
    /// If the host would not serve the component.
    pub async fn load(bytes: Vec<u8>, config: Option<Value>, options: Options) -> Result<Self, ReplayError> {
        let manifest = inspect(&bytes).map_err(ReplayError::Rejected)?.manifest.ok_or(ReplayError::NoManifest)?;
        let plugins = Plugins::start(Options { dir: None, grants: None, ..options }).await?;
        let grant = Grant { config, limits: manifest.limits, ..Grant::of_all(&manifest) };
        plugins.set_grants(vec![grant]).await;
        let unknown =
            || ReplayError::NotServing { reason: "Unknown".to_owned(), message: "nothing is known".to_owned() };
        let status = plugins.publish("file", bytes).await.ok_or_else(unknown)?;
        if status.state != PluginState::Serving {
            return Err(ReplayError::NotServing { reason: status.reason, message: status.message });
        }
        let plugin = status.digest.and_then(|digest| plugins.plugin(&digest)).ok_or_else(unknown)?;
        Ok(Self { plugin, _plugins: plugins })
    }

    /// Returns the manifest of the plugin.
    pub fn manifest(&self) -> &Manifest {
        self.plugin.manifest()
    }

    /// Plays a record in a fresh instance.
    ///
    /// # Errors
    ///
    /// If the record is about another plugin.
    pub async fn play(&self, record: &Arc<VisitRecord>) -> Result<ReplayedVisit, ReplayError> {
        self.warm(&record.plugin.limits).play(record).await
    }

    /// Returns an instance that plays records one after the other. Its limits are at least `limits`.
    pub fn warm(&self, limits: &PluginLimits) -> WarmReplay<'_> {
        WarmReplay { replayer: self, session: Session::new(Arc::new(self.context(limits))) }
    }

    /// Returns the context of calls with the larger of the recorded limits and the own ones, and without a limit on time.
    fn context(&self, recorded: &PluginLimits) -> CallContext {
        let CallContext { engine, pre, settings, .. } = &*self.plugin.context;
        let own = settings.limits;
        let limits = PluginLimits {
            call_ms: ENDLESS_MS,
            memory_mib: own.memory_mib.max(recorded.memory_mib).min(CAPS.memory_mib),
            output_bytes: own.output_bytes.max(recorded.output_bytes).min(CAPS.output_bytes),
            log_bytes: own.log_bytes,
            host_calls: own.host_calls.max(recorded.host_calls).min(CAPS.host_calls),
        };
        let settings = PluginSettings {
            manifest: settings.manifest.clone(),
            grant: settings.grant.clone(),
            limits,
            config: settings.config.clone(),
            log: LogBudget::full(),
            peaks: Default::default(),
        };
        CallContext { engine: engine.clone(), pre: pre.clone(), settings: Arc::new(settings), wall_timeout: None }
    }

    fn notes(&self, record: &VisitRecord) -> Vec<String> {
        let mut notes = Vec::new();
        if record.is_timeout() {
            notes.push("the recorded call exceeded its limit on time; the replay has no such limit, and ends a call after 60 s".to_owned());
        }
        let own = self.plugin.info.grant.config.as_ref().map(config_digest);
        if own != record.plugin.config_digest {
            notes.push("the recorded plugin had other settings; name its settings by --config".to_owned());
        }
        notes
    }
}

impl WarmReplay<'_> {
    /// Plays a record after the earlier ones in the same instance.
    ///
    /// # Errors
    ///
    /// If the record is about another plugin.
    pub async fn play(&mut self, record: &Arc<VisitRecord>) -> Result<ReplayedVisit, ReplayError> {
        let own = &self.replayer.manifest().name;
        if record.plugin.name != *own {
            let recorded = oarlock_contract::names::shown(&record.plugin.name);
            return Err(ReplayError::OtherPlugin { recorded, own: own.clone() });
        }
        let reads = Arc::new(ReplayReads::new(record.clone(), self.replayer.plugin.info.clone()));
        let answer = recorded_answer(&self.session.call(reads.visit()).await);
        let verdict = match reads.unrecorded() {
            Some(unrecorded) => ReplayVerdict::AskedForSomethingElse { read: unrecorded.read, why: unrecorded.why },
            None => match differences(&record.answer, &answer) {
                found if found.is_empty() => ReplayVerdict::Same,
                differences => ReplayVerdict::DifferentAnswer { differences },
            },
        };
        Ok(ReplayedVisit { verdict, notes: self.replayer.notes(record), answer })
    }
}
