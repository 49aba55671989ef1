//! The version of the API server, which the host reads once at its start.

use serde::Deserialize;

use crate::cluster::Cluster;
use crate::error_chain::error_chain;
use crate::transport::call::{ApiCall, RequestError};

/// The oldest minor version of Kubernetes 1 that serves all APIs of the host.
const OLDEST: u32 = 33;

/// The reason why the host cannot use an API server.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerProblem {
    /// The API server is unreachable now.
    #[error("the API server cannot be asked for its version: {0}")]
    Unreachable(String),
    /// The answer does not come from an API server.
    #[error("what answers there is no Kubernetes API server: {0}; check the address in the kubeconfig")]
    NoApiServer(String),
    /// The API server lacks APIs that the host uses.
    #[error("the API server has version {0}, and the host needs Kubernetes 1.33 or newer: upgrade the cluster")]
    TooOld(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    major: String,
    minor: String,
    git_version: String,
}

impl Cluster {
    /// Reads the version of the API server.
    ///
    /// # Errors
    /// If the API server is unreachable or too old, or if the address does not belong to an API server.
    pub async fn server_version(&self) -> Result<String, ServerProblem> {
        let request = http::Request::get("/version").body(Vec::new()).map_err(kube::core::request::Error::BuildRequest);
        let call = ApiCall { verb: "get", resource: "version", request };
        match self.link.transport.fetch::<Version>(call).await {
            Ok(version) => judge(version),
            Err(error @ RequestError::Unreadable(_)) => Err(ServerProblem::NoApiServer(error_chain(&error))),
            Err(error) if error.is(404) => Err(ServerProblem::NoApiServer(error_chain(&error))),
            Err(error) => Err(ServerProblem::Unreachable(error_chain(&error))),
        }
    }
}

fn judge(version: Version) -> Result<String, ServerProblem> {
    let Version { major, minor, git_version } = version;
    // Some providers write "33+".
    let digits: String = minor.chars().take_while(char::is_ascii_digit).collect();
    match (major.parse::<u32>(), digits.parse::<u32>()) {
        (Ok(1), Ok(minor)) if minor < OLDEST => Err(ServerProblem::TooOld(git_version)),
        (Ok(_), Ok(_)) => Ok(git_version),
        _ => Err(ServerProblem::NoApiServer(format!("its version is {git_version:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(minor: &str) -> Result<String, ServerProblem> {
        judge(Version { major: "1".into(), minor: minor.into(), git_version: format!("v1.{minor}.0") })
    }

    #[test]
    fn a_server_that_is_too_old_is_named_with_what_is_needed() {
        let error = judged("32+").unwrap_err().to_string();
        assert!(error.contains("v1.32+.0") && error.contains("1.33 or newer"), "{error}");
        assert_eq!((judged("33").is_ok(), judged("36+").is_ok()), (true, true));
        assert!(matches!(judged(""), Err(ServerProblem::NoApiServer(_))));
    }
}
