//! The query parameters of a request. Unknown ones are ignored, as the real server does.

use crate::server::status::Refusal;

/// The parameters of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }

    /// The first value of a parameter, none if it is absent or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Go's reading of a boolean parameter: present without a value is true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        let value = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.to_lowercase());
        value.is_some_and(|value| value != "false" && value != "0")
    }

    /// A number, or a refusal that shows the parameter.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let parse = |value: &str| {
            value.parse().map_err(|_bad| {
                Refusal::bad_request(format!("strconv.ParseUint: parsing {value:?}: invalid syntax ({name})"))
            })
        };
        self.get(name).map(parse).transpose()
    }

    /// True for a dry run.
    pub(crate) fn dry_run(&self) -> bool {
        self.get("dryRun").is_some()
    }
}
