//! The commands with which an admin grants a right that a plan lacks.

/// A missing right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lacking<'a> {
    /// The name of the role to create. Each right has its own, because a role can be created only once.
    pub(super) role: &'static str,
    /// The verb: `list` or `get`.
    pub(super) verb: &'static str,
    /// The resources with their groups, such as `pods,deployments.apps`.
    pub(super) resources: &'a str,
    /// The namespace; `None` means the whole cluster.
    pub(super) namespace: Option<&'a str>,
}

impl Lacking<'_> {
    /// Returns the commands in the order in which to run them.
    pub(super) fn commands(&self) -> [String; 2] {
        let Self { role, verb, resources, namespace } = *self;
        match namespace {
            Some(namespace) => [
                format!("kubectl -n {namespace} create role {role} --verb={verb} --resource={resources}"),
                format!("kubectl -n {namespace} create rolebinding {role} --role={role} --user=YOU"),
            ],
            None => [
                format!("kubectl create clusterrole {role} --verb={verb} --resource={resources}"),
                format!("kubectl create clusterrolebinding {role} --clusterrole={role} --user=YOU"),
            ],
        }
    }

    /// Returns the end of a sentence about something that was not read: the commands that fix it.
    pub(super) fn remedy(&self) -> String {
        let [create, bind] = self.commands();
        format!("; an admin lets you with `{create}` and `{bind}`")
    }
}
