//! The addresses of the pages: which kinds, which objects, and which part of an object.
//!
//! An address is all that a page remembers. The server parses it for a GET and for each `of` of a stream, and each link shows it.

use std::fmt::{self, Display, Formatter};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// The path of the first page. Every other path of the page begins with it.
pub const ROOT: &str = "/ui/";
/// The path of the login form, for GET and POST.
pub const LOGIN: &str = "/ui/login";
/// The path that ends a login, for POST.
pub const LOGOUT: &str = "/ui/logout";
/// The path of the list of plugins.
pub const PLUGINS: &str = "/ui/plugins";
/// The path before the logs of failed Jobs.
pub const LOG: &str = "/ui/log/";
/// The path of the stream of events. Its query has up to [`MOST_STREAMED`] pairs of `of`, an address, and `at`, the version of that
/// page ([`PageContent::version`](crate::PageContent::version)).
pub const STREAM: &str = "/ui/stream";
/// The most addresses of one stream.
pub const MOST_STREAMED: usize = 20;
/// The most namespaces of one address.
pub const MOST_NAMESPACES: usize = 20;

/// The longest name and the longest text of a filter, in bytes.
const LONGEST: usize = 1024;
/// The bytes that a segment of a path escapes.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'/')
    .add(b'%');

/// A kind of object that the page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// OperationJob.
    OperationJob,
    /// JobFlow.
    JobFlow,
    /// DaemonJob.
    DaemonJob,
    /// OpsJob, which has no namespace.
    OpsJob,
}

impl ObjectKind {
    /// All kinds, in the order of the navigation.
    pub const ALL: [Self; 4] = [Self::OperationJob, Self::JobFlow, Self::DaemonJob, Self::OpsJob];

    /// Returns the kind in the words of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::OperationJob => "OperationJob",
            Self::JobFlow => "JobFlow",
            Self::DaemonJob => "DaemonJob",
            Self::OpsJob => "OpsJob",
        }
    }

    /// Returns the short name that kubectl and the addresses use.
    pub fn short(self) -> &'static str {
        match self {
            Self::OperationJob => "opj",
            Self::JobFlow => "jf",
            Self::DaemonJob => "dj",
            Self::OpsJob => "ops",
        }
    }

    /// Returns the word for a part of such an object: a target, a step or a node.
    pub(crate) fn part(self) -> &'static str {
        match self {
            Self::OperationJob => "target",
            Self::JobFlow => "step",
            Self::DaemonJob | Self::OpsJob => "node",
        }
    }

    fn of_short(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.short() == word)
    }
}

/// The states by which a list can be filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListState {
    /// The object failed in the last day, or something holds it up.
    Attention,
    /// The object has not started.
    Pending,
    /// The object has started and not ended.
    Running,
    /// The object succeeded.
    Succeeded,
    /// The object failed.
    Failed,
}

impl ListState {
    /// All states, in the order of the form.
    pub const ALL: [Self; 5] = [Self::Attention, Self::Pending, Self::Running, Self::Succeeded, Self::Failed];

    /// Returns the word in an address.
    pub fn word(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

/// The filters and the place of a list. The default shows the first rows of all objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobQuery {
    /// The kind; all kinds if absent.
    pub kind: Option<ObjectKind>,
    /// The namespaces; all namespaces if empty. At most [`MOST_NAMESPACES`].
    pub namespaces: Vec<String>,
    /// The state; all states if absent.
    pub state: Option<ListState>,
    /// A part of a name or an action, in any case; everything if empty.
    pub text: String,
    /// The number of rows before the first shown row.
    pub skip: usize,
}

/// The name of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectAddress {
    /// The kind.
    pub kind: ObjectKind,
    /// The namespace. It is empty for an OpsJob.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The targets, steps or nodes that the page of an object shows in its table. The default shows the first ones by need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartQuery {
    /// Shows only this state, in the words of the page, such as `Blocked` or `In flight`.
    pub state: String,
    /// The number of rows before the first shown row, in the order of the object. Absent means by need.
    pub from: Option<usize>,
}

/// The log of the failed Job of a step or node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogAddress {
    /// The JobFlow or DaemonJob.
    pub object: ObjectAddress,
    /// The name of the Job.
    pub job: String,
}

impl LogAddress {
    /// Returns the log that a path with its query names, such as `/ui/log/jf/team-a/web?job=web-build`. Returns `None` if there is no such
    /// log.
    pub fn parse(address: &str) -> Option<Self> {
        let job =
            query_value(address.split_once('?')?.1, "job").filter(|job| !job.is_empty() && job.len() <= LONGEST)?;
        match PageAddress::parse(&format!("{ROOT}{}", address.strip_prefix(LOG)?))? {
            PageAddress::Object(object, _) if matches!(object.kind, ObjectKind::JobFlow | ObjectKind::DaemonJob) => {
                Some(Self { object, job })
            }
            _ => None,
        }
    }
}

/// An address of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageAddress {
    /// A list of objects.
    Jobs(JobQuery),
    /// One object.
    Object(ObjectAddress, PartQuery),
    /// One target of an OperationJob or OpsJob, by its index from 0.
    Target(ObjectAddress, usize),
    /// The plugins that the leader serves.
    Plugins,
}

impl PageAddress {
    /// Returns the page that a path with its query names, such as `/ui/opj/team-a/web?target=3`. Returns `None` if there is no such
    /// page. Unknown fields of a query have no effect.
    pub fn parse(address: &str) -> Option<Self> {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        if path == PLUGINS {
            return Some(Self::Plugins);
        }
        let segments: Vec<&str> = path.strip_prefix(ROOT)?.split('/').collect();
        let decoded = |segment: &str| {
            let text = percent_decode_str(segment).decode_utf8().ok()?.into_owned();
            (!text.is_empty() && text.len() <= LONGEST).then_some(text)
        };
        let (kind, namespace, name) = match segments.as_slice() {
            [""] => return Some(Self::Jobs(JobQuery::read(query))),
            [short, name] => (ObjectKind::of_short(short)?, String::new(), decoded(name)?),
            [short, namespace, name] => (ObjectKind::of_short(short)?, decoded(namespace)?, decoded(name)?),
            _ => return None,
        };
        if namespace.is_empty() != (kind == ObjectKind::OpsJob) {
            return None;
        }
        let object = ObjectAddress { kind, namespace, name };
        let has_targets = matches!(kind, ObjectKind::OperationJob | ObjectKind::OpsJob);
        let target = query_value(query, "target").and_then(|index| index.parse().ok()).filter(|_| has_targets);
        Some(match target {
            Some(index) => Self::Target(object, index),
            None => Self::Object(object, PartQuery::read(query)),
        })
    }

    /// Returns the kind of the objects on the page. A list of all kinds and the list of plugins have none.
    pub(crate) fn kind(&self) -> Option<ObjectKind> {
        match self {
            Self::Jobs(query) => query.kind,
            Self::Object(object, _) | Self::Target(object, _) => Some(object.kind),
            Self::Plugins => None,
        }
    }
}

impl JobQuery {
    fn read(query: &str) -> Self {
        let text = |field| query_value(query, field).filter(|text| text.len() <= LONGEST).unwrap_or_default();
        let state = text("state");
        let names = text("namespace");
        let names = names.split([',', ' ']).filter(|name| !name.is_empty()).take(MOST_NAMESPACES);
        Self {
            kind: ObjectKind::of_short(&text("kind")),
            namespaces: names.map(str::to_owned).collect(),
            state: ListState::ALL.into_iter().find(|known| known.word() == state),
            text: text("q").trim().to_owned(),
            skip: text("skip").parse().unwrap_or(0),
        }
    }

    fn pairs(&self) -> Vec<(&'static str, String)> {
        let kind = self.kind.map(ObjectKind::short).unwrap_or_default().to_owned();
        let state = self.state.map(ListState::word).unwrap_or_default().to_owned();
        let skip = if self.skip == 0 { String::new() } else { self.skip.to_string() };
        let namespaces = self.namespaces.join(",");
        vec![("kind", kind), ("namespace", namespaces), ("state", state), ("q", self.text.clone()), ("skip", skip)]
    }
}

impl PartQuery {
    fn read(query: &str) -> Self {
        let state = query_value(query, "state").filter(|state| state.len() <= LONGEST).unwrap_or_default();
        Self { state, from: query_value(query, "from").and_then(|from| from.parse().ok()) }
    }
}

impl Display for ObjectAddress {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let segment = |text| utf8_percent_encode(text, SEGMENT);
        write!(out, "{ROOT}{}/", self.kind.short())?;
        if !self.namespace.is_empty() {
            write!(out, "{}/", segment(&self.namespace))?;
        }
        write!(out, "{}", segment(&self.name))
    }
}

impl Display for LogAddress {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let object = self.object.to_string();
        write!(out, "{LOG}{}{}", object.trim_start_matches(ROOT), written(&[("job", self.job.clone())]))
    }
}

impl Display for PageAddress {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jobs(query) => write!(out, "{ROOT}{}", written(&query.pairs())),
            Self::Object(object, query) => {
                let from = query.from.map(|from| from.to_string()).unwrap_or_default();
                write!(out, "{object}{}", written(&[("state", query.state.clone()), ("from", from)]))
            }
            Self::Target(object, index) => write!(out, "{object}?target={index}"),
            Self::Plugins => out.write_str(PLUGINS),
        }
    }
}

/// Returns the fields of a query that have a value, after a `?`. Returns an empty text if there are none.
fn written(pairs: &[(&str, String)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs.iter().filter(|(_, value)| !value.is_empty()));
    let query = query.finish();
    if query.is_empty() { query } else { format!("?{query}") }
}

/// Returns the value of the first field with this name in a query or a form.
pub fn query_value(query: &str, field: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(name, _)| name == field).map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written_also_with_hostile_names() {
        for name in ["web", "a/b?c#d", "<script>", "%2e", "\u{202e}x\u{0}", "ü .", ".."] {
            let object = ObjectAddress { kind: ObjectKind::JobFlow, namespace: name.to_owned(), name: name.to_owned() };
            let query = PartQuery { state: name.to_owned(), from: Some(250) };
            let address = PageAddress::Object(object.clone(), query);
            assert_eq!(PageAddress::parse(&address.to_string()), Some(address));
            let ops = ObjectAddress { kind: ObjectKind::OpsJob, namespace: String::new(), ..object };
            let address = PageAddress::Target(ops, 7);
            assert_eq!(PageAddress::parse(&address.to_string()), Some(address));
            let query =
                JobQuery { text: name.to_owned(), skip: 100, state: Some(ListState::Failed), ..JobQuery::default() };
            let address = PageAddress::Jobs(query);
            assert_eq!(PageAddress::parse(&address.to_string()), Some(address));
            let object = ObjectAddress { kind: ObjectKind::JobFlow, namespace: name.to_owned(), name: name.to_owned() };
            let address = LogAddress { object, job: name.to_owned() };
            assert_eq!(LogAddress::parse(&address.to_string()), Some(address));
        }
    }

    #[test]
    fn other_paths_are_no_page() {
        for path in
            ["", "/", "/ui", "/ui/opj/web", "/ui/ops/a/b", "/ui/pod/a/b", "/ui/opj//b", "/ui/opj/a/b/c", "/api/v1"]
        {
            assert_eq!(PageAddress::parse(path), None, "{path}");
        }
        for path in [
            "/ui/log/jf/a/b",
            "/ui/log/jf/a/b?job=",
            "/ui/log/opj/a/b?job=c",
            "/ui/log/ops/a?job=c",
            "/ui/jf/a/b?job=c",
        ] {
            assert_eq!(LogAddress::parse(path), None, "{path}");
        }
    }

    #[test]
    fn an_address_names_at_most_twenty_namespaces() {
        let names: Vec<String> = (0..30).map(|at| format!("n{at}")).collect();
        let Some(PageAddress::Jobs(query)) = PageAddress::parse(&format!("/ui/?namespace={}", names.join("%2C")))
        else {
            panic!("no list")
        };
        assert_eq!(query.namespaces, names[..20]);
    }
}
