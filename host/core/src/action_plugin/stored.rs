//! An ActionPlugin as the host sees it.

use serde::Deserialize as _;
use serde_json::Value;

use crate::action_plugin::status::ActionPluginStatus;
use crate::cache::object_cache::CachedObject;
use crate::object::api_object::{Kind, Object, ObjectKey};
use crate::object::bound::shown_cause;
use crate::object::fields::number;
use crate::plugin::grant::{API_VERSION, Grant, KIND};

/// The longest description of an invalid spec, in bytes.
const MOST_CAUSE: usize = 1_024;

/// Returns the kind ActionPlugin.
pub fn action_plugin_kind() -> Kind {
    Kind::new(API_VERSION, KIND)
}

/// Returns the key of the ActionPlugin of the plugin with this name.
pub fn action_plugin_key(name: &str) -> ObjectKey {
    ObjectKey { kind: action_plugin_kind(), namespace: None, name: name.to_owned() }
}

/// A stored ActionPlugin.
#[derive(Clone, Debug)]
pub struct StoredActionPlugin {
    /// The metadata.
    pub object: Object,
    /// `metadata.generation`.
    pub generation: i64,
    /// True if the spec is missing or empty, as in an object that the host created.
    pub is_empty: bool,
    /// The grant in the spec, or why the spec is invalid. An invalid spec grants nothing.
    pub grant: Result<Grant, String>,
    /// `status`. It is empty if it cannot be parsed.
    pub status: ActionPluginStatus,
}

impl StoredActionPlugin {
    /// Parses a stored ActionPlugin. Returns `None` for a document without a name or a UID.
    pub fn read(document: &Value) -> Option<Self> {
        let object = Object::slim(document, &action_plugin_kind(), &[])?;
        let spec = document.get("spec").filter(|spec| !spec.is_null());
        let status = document.get("status").and_then(|status| ActionPluginStatus::deserialize(status).ok());
        Some(Self {
            generation: number(document, "/metadata/generation").unwrap_or_default(),
            is_empty: spec.and_then(Value::as_object).is_none_or(serde_json::Map::is_empty),
            grant: Grant::of_spec(&object.key.name, spec).map_err(|error| {
                let causes = oarlock_contract::causes::causes(&error);
                shown_cause(&causes, MOST_CAUSE)
            }),
            status: status.unwrap_or_default(),
            object,
        })
    }
}

impl CachedObject for StoredActionPlugin {
    fn key(&self) -> ObjectKey {
        self.object.key.clone()
    }

    fn uid(&self) -> &str {
        &self.object.uid
    }

    fn version(&self) -> u64 {
        self.object.version()
    }
}

/// Returns the grants of these ActionPlugins, the oldest object first. An object that is invalid or being deleted grants nothing.
pub fn grants_of<'a>(objects: impl Iterator<Item = &'a StoredActionPlugin>) -> Vec<Grant> {
    let mut granting: Vec<&StoredActionPlugin> = objects.filter(|one| !one.object.terminating()).collect();
    // If two plugins have one action, the plugin with the older object serves.
    granting.sort_by_key(|one| (one.object.created, one.object.key.name.clone()));
    granting.into_iter().filter_map(|one| one.grant.as_ref().ok()).cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stored(name: &str, created: &str, spec: &Value) -> StoredActionPlugin {
        let metadata = json!({"name": name, "uid": name, "generation": 3, "creationTimestamp": created});
        StoredActionPlugin::read(&json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[test]
    fn the_oldest_object_comes_first_and_an_invalid_one_grants_nothing() {
        let spec = json!({"anyVersion": true, "namespaces": ["*"]});
        let mut going = stored("going", "2026-01-01T00:00:00Z", &spec);
        going.object.deleted = going.object.created;
        let objects = [
            stored("young", "2026-01-03T00:00:00Z", &spec),
            stored("old", "2026-01-02T00:00:00Z", &spec),
            stored("invalid", "2026-01-01T00:00:00Z", &json!({"any": true})),
            going,
        ];
        let names: Vec<String> = grants_of(objects.iter()).into_iter().map(|grant| grant.name).collect();
        assert_eq!(names, ["old", "young"]);
        let why = objects[2].grant.as_ref().unwrap_err();
        assert!(why.contains("unknown field `any`"), "{why}");
    }

    #[test]
    fn an_object_that_the_host_created_is_empty_and_grants_nothing() {
        for spec in [json!({}), Value::Null] {
            let object = stored("new", "2026-01-01T00:00:00Z", &spec);
            assert!(object.is_empty && object.grant.unwrap().namespaces.is_empty());
        }
    }
}
