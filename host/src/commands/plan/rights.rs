//! The commands by which an admin lets somebody read what a plan lacks.

/// What somebody may not do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lacking<'a> {
    /// The name of the role that allows it; one for each, since a role is created once.
    pub(super) role: &'static str,
    /// `list` or `get`.
    pub(super) verb: &'static str,
    /// Resources with their groups, such as `pods,deployments.apps`.
    pub(super) resources: &'a str,
    /// Where; `None` is the whole cluster.
    pub(super) namespace: Option<&'a str>,
}

impl Lacking<'_> {
    /// The commands, in their order.
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

    /// The end of a sentence that says what was not read.
    pub(super) fn remedy(&self) -> String {
        let [create, bind] = self.commands();
        format!("; an admin lets you with `{create}` and `{bind}`")
    }
}
