//! Explains a refused request to the user: its cause and the fix.

use anyhow::{Error, anyhow};
use kube::core::Status;
use oarlock_view::escaped;

/// The text before the message of an admission policy in the server's answer.
const REFUSED_BY_POLICY: &str = "denied request: ";

/// A request, as its error names it.
pub(super) struct Asked<'a> {
    /// The verb: `create`, `get`, `list` or `watch`.
    pub(super) verb: &'static str,
    /// The kind in the plural, such as `OperationJobs`.
    pub(super) kinds: &'static str,
    /// The short name of the kind, such as `opj`.
    pub(super) short: &'static str,
    /// The name of the object; `None` for a list.
    pub(super) name: Option<&'a str>,
    pub(super) namespace: &'a str,
    /// The address of the API server.
    pub(super) server: &'a str,
}

impl Asked<'_> {
    fn what(&self) -> String {
        let place = self.place();
        match self.name {
            Some(name) => format!("{} {}/{name}{place}", self.verb, self.short),
            None => format!("{} {}{place}", self.verb, self.kinds),
        }
    }

    /// Returns the namespace as the error names it; empty for a cluster-scoped object.
    fn place(&self) -> String {
        if self.namespace.is_empty() { String::new() } else { format!(" in namespace {}", self.namespace) }
    }
}

/// Returns the error for the user: the operation, the cause and the fix.
pub(super) fn explained(cause: kube::Error, asked: &Asked<'_>) -> Error {
    let what = asked.what();
    match cause {
        kube::Error::Api(status) => refused(&status, asked, &what),
        // The messages of these errors do not name the server's address.
        cause @ (kube::Error::Service(_) | kube::Error::HyperError(_)) => Error::new(cause).context(format!(
            "cannot {what}: the cluster at {} is not reached; check --context and --kubeconfig, or that it runs",
            asked.server
        )),
        cause => Error::new(cause).context(format!("cannot {what}")),
    }
}

fn refused(status: &Status, asked: &Asked<'_>, what: &str) -> Error {
    let message = escaped(&status.message).into_owned();
    if let Some((_, rule)) = message.split_once(REFUSED_BY_POLICY) {
        return anyhow!("the cluster refuses the job: {rule}");
    }
    let names_an_object = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    match (status.code, asked.name) {
        (404, _) if !names_an_object => anyhow!(
            "cannot {what}: this cluster does not serve {}; `oarlock manifests{} | kubectl apply -f -` prepares it",
            asked.kinds,
            if asked.short == "ops" { " --ops" } else { "" }
        ),
        (404, Some(name)) if asked.verb != "create" && asked.short == "opj" => anyhow!(
            "there is no job {name} in namespace {}; `oarlock get -A` lists the jobs of all namespaces",
            asked.namespace
        ),
        (404, Some(name)) if asked.namespace.is_empty() => {
            anyhow!("there is no {short}/{name}; `kubectl get {short}` lists the existing ones", short = asked.short)
        }
        (404, Some(name)) if asked.verb != "create" => anyhow!(
            "there is no {short}/{name} in namespace {}; `kubectl get {short} -A` lists those of all namespaces",
            asked.namespace,
            short = asked.short
        ),
        (409, Some(name)) => anyhow!(
            "there is a job {name} in namespace {} already; `oarlock watch opj/{name}` follows it, and another --name makes \
             another one",
            asked.namespace
        ),
        (401, _) => anyhow!("cannot {what}: the cluster does not accept the credentials of this context; log in again"),
        (403, _) => {
            anyhow!("cannot {what}: {message}; ask an admin of the cluster for a role, or choose another with -n")
        }
        (422, _) => anyhow!("the cluster refuses the job: {message}"),
        _ => anyhow!("cannot {what}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::response::StatusDetails;

    use super::*;

    fn said(code: u16, message: &str, object: &str, asked: &Asked<'_>) -> String {
        let details = StatusDetails { name: object.into(), ..serde_json::from_str("{}").unwrap() };
        let status = Status { code, message: message.into(), details: Some(details), ..Status::success() };
        explained(kube::Error::Api(status.boxed()), asked).to_string()
    }

    #[test]
    fn each_refusal_names_its_cause_and_its_fix() {
        let of = |kinds, short, verb, name| {
            let (namespace, server) = ("team-a", "https://cluster");
            Asked { verb, kinds, short, name, namespace, server }
        };
        let asked = |verb, name| of("OperationJobs", "opj", verb, name);
        let policy = "operationjobs.apps.kusionstack.io \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' \
                      denied request: spec.partition: must be >= 0";
        assert_eq!(
            said(422, policy, "x", &asked("create", Some("x"))),
            "the cluster refuses the job: spec.partition: must be >= 0"
        );
        let none = said(404, "operationjobs \"x\" not found", "x", &asked("get", Some("x")));
        assert!(none.starts_with("there is no job x in namespace team-a; `oarlock get -A`"), "{none}");
        let unserved = said(404, "the server could not find the requested resource", "", &asked("list", None));
        assert!(unserved.contains("does not serve OperationJobs; `oarlock manifests"), "{unserved}");
        let none = said(404, "jobflows \"x\" not found", "x", &of("JobFlows", "jf", "get", Some("x")));
        assert_eq!(none, "there is no jf/x in namespace team-a; `kubectl get jf -A` lists those of all namespaces");
        let there = said(409, "exists", "x", &asked("create", Some("x")));
        assert!(there.contains("already; `oarlock watch opj/x`"), "{there}");
        let forbidden = said(403, "User \"ann\" cannot list\u{1b}", "", &asked("list", None));
        assert!(forbidden.contains("User \"ann\" cannot list\\u{1b}; ask an admin"), "{forbidden}");
    }
}
