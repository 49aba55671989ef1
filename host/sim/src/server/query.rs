//! The query parameters of a request. As in the real server, unknown parameters are ignored.

use crate::server::status::Refusal;

/// The parameters of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }

    /// Returns the first value of a parameter, or none if it is absent or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Reads a boolean parameter as Go does. A parameter without a value is true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        let value = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.to_lowercase());
        value.is_some_and(|value| value != "false" && value != "0")
    }

    /// Reads a number. The refusal of an invalid number names the parameter.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let parse = |value: &str| {
            value.parse().map_err(|_bad| {
                Refusal::bad_request(format!("strconv.ParseUint: parsing {value:?}: invalid syntax ({name})"))
            })
        };
        self.get(name).map(parse).transpose()
    }

    /// Returns true for a dry run.
    pub(crate) fn dry_run(&self) -> bool {
        self.get("dryRun").is_some()
    }
}
