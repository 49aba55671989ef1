//! The note in the lease about the plugin that serves each action.
//!
//! The text fits into an annotation. An older or newer host may have written it, so an unreadable text counts as
//! missing.

use std::collections::BTreeMap;

use oarlock_wasm::{PluginState, PluginStatus};
use serde::{Deserialize, Serialize};

/// The longest text, in bytes. The annotations of an object have at most 256 KiB in total, and the lease is written
/// every few seconds.
const MOST_BYTES: usize = 16 * 1024;

/// The plugin that serves an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServedPlugin {
    /// The name of the plugin.
    pub(crate) name: String,
    /// The version of the plugin.
    pub(crate) version: String,
    /// The digest of the plugin's file, `sha256:...`.
    pub(crate) digest: String,
}

/// The serving plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServedActions {
    /// The plugins, by action.
    pub(crate) actions: BTreeMap<String, ServedPlugin>,
    /// True if the annotation had no room for all plugins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) incomplete: bool,
}

impl ServedActions {
    /// Returns the serving plugins of a list.
    pub(crate) fn of(list: &[PluginStatus]) -> Self {
        let serving = list.iter().filter(|status| status.state == PluginState::Serving);
        let plugin = |status: &PluginStatus| {
            let (name, version, digest) = (status.name.clone()?, status.version.clone()?, status.digest.clone()?);
            Some((status.action.clone()?, ServedPlugin { name, version, digest }))
        };
        Self { actions: serving.filter_map(plugin).collect(), incomplete: false }
    }

    /// Returns the text. Omits the last actions if it is too long.
    pub(crate) fn text(mut self) -> String {
        loop {
            let text = serde_json::to_string(&self).unwrap_or_default();
            if text.len() <= MOST_BYTES {
                return text;
            }
            self.incomplete = true;
            self.actions.pop_last();
        }
    }

    /// Parses a text.
    pub(crate) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(number: usize, state: PluginState) -> PluginStatus {
        PluginStatus {
            source: format!("{number}.wasm"),
            name: Some(format!("p{number}")),
            version: Some("1.2.0".into()),
            action: Some(format!("Action{number:03}")),
            digest: Some(format!("sha256:{}", "0".repeat(64))),
            state,
            reason: String::new(),
            message: String::new(),
            rights: Vec::new(),
            missing: Vec::new(),
        }
    }

    #[test]
    fn only_what_serves_is_said_and_read_back_as_it_was() {
        let list = [status(1, PluginState::Serving), status(2, PluginState::AwaitingGrant)];
        let text = ServedActions::of(&list).text();
        let digest = "0".repeat(64);
        let expected =
            format!(r#"{{"actions":{{"Action001":{{"name":"p1","version":"1.2.0","digest":"sha256:{digest}"}}}}}}"#);
        assert_eq!(text, expected);
        assert_eq!(ServedActions::read(&text), Some(ServedActions::of(&list)));
        assert_eq!(ServedActions::read("nonsense"), None);
    }

    #[test]
    fn of_very_many_plugins_as_many_are_said_as_fit_and_that_it_is_not_all() {
        let list: Vec<PluginStatus> = (0..500).map(|number| status(number, PluginState::Serving)).collect();
        let text = ServedActions::of(&list).text();
        let read = ServedActions::read(&text).unwrap();
        assert!(text.len() <= MOST_BYTES && read.incomplete && read.actions.len() > 50, "{}", text.len());
        assert!(read.actions.contains_key("Action000"));
    }
}
