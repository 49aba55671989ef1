//! The user as whom a request is made. The sender is the administrator, or the service account of a bearer token. Headers may
//! impersonate another user, for which the sender needs rights.
//!
//! A service account may be impersonated in the constrained way: the sender then needs `impersonate:serviceaccount` on the account, and
//! `impersonate-on:serviceaccount:VERB` on the resource of the request. Any header beside the user's name asks for the verb `impersonate`.

use std::collections::BTreeMap;

use http::{HeaderMap, header};

use crate::{
    access::{
        gate::{document_verb, refusal},
        rbac::{Attributes, Roles},
        token_review,
        user::{MASTERS, SERVICE_ACCOUNT, User},
    },
    server::{
        cluster::State,
        routing::{Incoming, ObjectPath},
        status::Refusal,
    },
};

const AUTHENTICATION: &str = "authentication.k8s.io";
const EXTRA: &str = "impersonate-extra-";

/// Returns the user as whom a request is made.
pub(crate) fn user(state: &State, incoming: &Incoming<'_>, path: Option<&ObjectPath>) -> Result<User, Refusal> {
    let sender = sender(state, incoming.headers)?;
    let Some(asked) = AskedRights::of(incoming.headers)? else { return Ok(sender) };
    if !sender.is_in(MASTERS) {
        permit(state, &sender, &asked, (incoming, path))?;
    }
    let mut user = User::impersonated(asked.name, asked.groups);
    (user.uid, user.extra) = (asked.uid, asked.extra);
    Ok(user)
}

fn sender(state: &State, headers: &HeaderMap) -> Result<User, Refusal> {
    let text = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = text.and_then(|text| text.strip_prefix("Bearer ")) else { return Ok(User::administrator()) };
    token_review::sender(state, token).ok_or_else(|| Refusal::plain(401, "Unauthorized", "Unauthorized"))
}

/// The user that the headers of a request ask for.
#[derive(Debug, Default)]
struct AskedRights {
    name: String,
    groups: Vec<String>,
    uid: String,
    extra: BTreeMap<String, Vec<String>>,
}

impl AskedRights {
    fn of(headers: &HeaderMap) -> Result<Option<Self>, Refusal> {
        let texts = |name: &str| {
            let all = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
            all.map(str::to_owned).collect::<Vec<_>>()
        };
        let (groups, uid) = (texts("impersonate-group"), texts("impersonate-uid"));
        let mut extra = BTreeMap::<String, Vec<String>>::new();
        for (name, value) in headers {
            if let (Some(key), Ok(value)) = (name.as_str().strip_prefix(EXTRA), value.to_str()) {
                let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
                extra.entry(key).or_default().push(value.to_owned());
            }
        }
        let uid = uid.into_iter().next().unwrap_or_default();
        // The server takes the first of several users.
        match texts("impersonate-user").into_iter().next() {
            Some(name) => Ok(Some(Self { name, groups, uid, extra })),
            None if groups.is_empty() && uid.is_empty() && extra.is_empty() => Ok(None),
            None => Err(Refusal::bad_request(format!("requested groups {groups:?} without impersonating a user name"))),
        }
    }

    /// Returns the namespace and name of the service account that is asked for.
    fn account(&self) -> Option<(&str, &str)> {
        self.name.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')
    }

    fn has_only_a_name(&self) -> bool {
        self.groups.is_empty() && self.uid.is_empty() && self.extra.is_empty()
    }

    /// Returns what the sender must be allowed to impersonate by the verb `impersonate`.
    fn legacy(&self) -> Vec<Attributes<'_>> {
        let on = |group, resource, subresource, namespace, name| Attributes {
            verb: "impersonate",
            group,
            resource,
            subresource,
            namespace,
            name,
            path: "",
        };
        let user = match self.account() {
            Some((namespace, name)) => on("", "serviceaccounts", "", namespace, name),
            None => on("", "users", "", "", &self.name),
        };
        let groups = self.groups.iter().map(|group| on("", "groups", "", "", group));
        let extra = self.extra.iter().flat_map(|(key, values)| {
            values.iter().map(move |value| on(AUTHENTICATION, "userextras", key.as_str(), "", value))
        });
        let uid = (!self.uid.is_empty()).then(|| on(AUTHENTICATION, "uids", "", "", &self.uid));
        std::iter::once(user).chain(groups).chain(extra).chain(uid).collect()
    }
}

/// Refuses the request unless the sender may make it as the user.
fn permit(
    state: &State,
    sender: &User,
    asked: &AskedRights,
    (incoming, path): (&Incoming<'_>, Option<&ObjectPath>),
) -> Result<(), Refusal> {
    let roles = Roles::of(state);
    let first_refused = |wanted: &[Attributes<'_>]| {
        let refused = wanted.iter().find(|wanted| !roles.decide(sender, wanted).allowed);
        refused.map(|wanted| refusal(sender, wanted))
    };
    let constrained = match asked.account().filter(|_| asked.has_only_a_name()) {
        None => None,
        Some((namespace, name)) => {
            let verb = match path {
                Some(path) => path.verb(incoming)?.as_str().to_owned(),
                None => document_verb(incoming.method),
            };
            let verb = format!("impersonate-on:serviceaccount:{verb}");
            let on = match path {
                Some(path) => Attributes { verb: &verb, ..path.attributes() },
                None => Attributes { verb: &verb, path: incoming.uri.path(), ..Attributes::default() },
            };
            let account = Attributes {
                verb: "impersonate:serviceaccount",
                group: AUTHENTICATION,
                resource: "serviceaccounts",
                namespace,
                name,
                ..Attributes::default()
            };
            Some(first_refused(&[on, account]))
        }
    };
    // The verb `impersonate` stays sufficient. The refusal is that of the constrained way where it applies.
    match (constrained, first_refused(&asked.legacy())) {
        (Some(None), _) | (_, None) => Ok(()),
        (Some(Some(refusal)), _) | (None, Some(refusal)) => Err(refusal),
    }
}
