//! Reads and applies the query parameters of a list. Source: docs/opsjob-rest.md 5.

use std::cmp::Ordering;
use std::collections::HashMap;

use k8s_openapi::jiff::civil::DateTime;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use oarlock_core::ops_job::phases::Phase;
use oarlock_core::ops_job::refusal::OpsRefusal;
use oarlock_core::ops_job::spec::OpsType;
use oarlock_history::{JobFilter, SortKey, Viewer, Window};

use crate::answers::Item;

/// The default page size and the largest page size.
const LIMIT: usize = 100;
const MOST: usize = 10_000;
/// The most characters of a search text.
const PART: usize = 512;
/// The default time range of a list.
const BACK: SignedDuration = SignedDuration::from_hours(720);
/// The sort keys by their words in queries.
const SORTS: [(&str, SortKey); 16] = [
    ("jobId", SortKey::JobId),
    ("jobName", SortKey::JobName),
    ("clusterId", SortKey::Cluster),
    ("workspaceId", SortKey::Workspace),
    ("userId", SortKey::UserId),
    ("userName", SortKey::UserName),
    ("type", SortKey::Kind),
    ("phase", SortKey::Phase),
    ("creationTime", SortKey::Created),
    ("startTime", SortKey::Started),
    ("endTime", SortKey::Ended),
    ("deletionTime", SortKey::Deleted),
    ("timeoutSecond", SortKey::Timeout),
    ("cluster", SortKey::Cluster),
    ("workspace", SortKey::Workspace),
    ("timeout", SortKey::Timeout),
];

/// The parsed query of a list request.
#[derive(Clone, Debug)]
pub(crate) struct ListQuery {
    offset: usize,
    limit: usize,
    sort_by: SortKey,
    is_ascending: bool,
    since: Timestamp,
    until: Timestamp,
    cluster: Option<String>,
    /// The requested workspace.
    pub(crate) workspace: Option<String>,
    user_name: Option<String>,
    job_name: Option<String>,
    phase: Option<Phase>,
    kind: Option<OpsType>,
    /// True if the query names a type that no job here has.
    is_of_no_type: bool,
    /// True if deleted jobs are requested too.
    with_deleted: bool,
}

/// Returns a search text in lower case.
fn part(name: &str, text: &str) -> Result<String, OpsRefusal> {
    match text.chars().count() <= PART {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(OpsRefusal::bad(format!("{name}: at most {PART} characters"))),
    }
}

/// Returns the parameters of a query by name. An empty value counts as absent.
pub(crate) fn parameters(query: Option<&str>, known: &[&str]) -> Result<HashMap<String, String>, OpsRefusal> {
    let mut read = given(query, known)?;
    read.retain(|_, value: &mut String| !value.is_empty());
    Ok(read)
}

/// Returns all parameters of a query by name.
pub(crate) fn given(query: Option<&str>, known: &[&str]) -> Result<HashMap<String, String>, OpsRefusal> {
    let mut read = HashMap::new();
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        if !known.contains(&&*name) {
            continue;
        }
        if read.insert(name.to_string(), value.into_owned()).is_some() {
            return Err(OpsRefusal::bad(format!("{name}: given twice")));
        }
    }
    Ok(read)
}

impl ListQuery {
    /// Reads the query of a request at this time.
    pub(crate) fn read(query: Option<&str>, now: Timestamp) -> Result<Self, OpsRefusal> {
        const KNOWN: [&str; 13] = [
            "deleted",
            "offset",
            "limit",
            "sortBy",
            "order",
            "since",
            "until",
            "clusterId",
            "workspaceId",
            "userName",
            "jobName",
            "phase",
            "type",
        ];
        let mut given = parameters(query, &KNOWN)?;
        let mut take = |name: &str| given.remove(name);
        let until = take("until").map(|text| time("until", &text)).transpose()?.unwrap_or(now);
        let earliest = until.checked_sub(BACK).unwrap_or(Timestamp::MIN);
        let since = take("since").map(|text| time("since", &text)).transpose()?.unwrap_or(earliest);
        if since > until {
            return Err(OpsRefusal::bad("since: must not be later than until"));
        }
        let sort_by = take("sortBy").and_then(|sort_by| {
            let of_sort = SORTS.iter().find(|(word, _)| word.eq_ignore_ascii_case(&sort_by));
            of_sort.map(|(_, key)| *key)
        });
        let kind = take("type");
        let known = kind.as_deref().and_then(OpsType::read);
        let limit = take("limit").map(|text| count("limit", &text, MOST)).transpose()?.unwrap_or(0);
        Ok(Self {
            offset: take("offset").map(|text| count("offset", &text, i64::MAX as usize)).transpose()?.unwrap_or(0),
            limit: if limit == 0 { LIMIT } else { limit },
            // Clients of the original API send column names of its store, and expect the newest jobs first.
            sort_by: sort_by.unwrap_or(SortKey::Created),
            is_ascending: match take("order").as_deref() {
                Some("asc") => true,
                Some("desc") | None => false,
                Some(_) => return Err(OpsRefusal::bad("order: asc or desc")),
            },
            since,
            until,
            cluster: take("clusterId"),
            workspace: take("workspaceId"),
            user_name: take("userName").map(|text| part("userName", &text)).transpose()?,
            job_name: take("jobName").map(|text| part("jobName", &text)).transpose()?,
            phase: take("phase").map(|word| phase(&word)).transpose()?,
            is_of_no_type: kind.is_some() && known.is_none(),
            kind: known,
            with_deleted: take("deleted").map(|word| flag("deleted", &word)).transpose()?.unwrap_or(false),
        })
    }

    /// Returns the most jobs of the page.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the items that match the query.
    pub(crate) fn taken(&self, items: impl Iterator<Item = Item>) -> Vec<Item> {
        items.filter(|item| self.takes(item)).collect()
    }

    /// Returns the window of history rows for a page beside this many live jobs, or `None` if the page has no rows.
    pub(crate) fn rows(&self, cluster: &str, live: usize) -> Option<Window> {
        let is_here = self.cluster.as_ref().is_none_or(|own| own == cluster) && !self.is_of_no_type;
        // At most all live jobs come before a row of the page.
        let offset = self.offset.saturating_sub(live);
        let limit = self.offset.saturating_add(self.limit).saturating_sub(offset);
        is_here.then_some(Window { sort: self.sort_by, is_ascending: self.is_ascending, offset, limit })
    }

    /// Returns the filter for the matching rows among those that the viewer may see.
    pub(crate) fn filter(&self, seen: Viewer) -> JobFilter {
        JobFilter {
            since: self.since,
            until: self.until,
            workspace: self.workspace.clone(),
            phase: self.phase.map(|phase| phase.word().to_owned()),
            kind: self.kind.map(|kind| kind.word().to_owned()),
            with_deleted: self.with_deleted,
            user_words: self.user_name.clone(),
            job_words: self.job_name.clone(),
            seen,
        }
    }

    /// Returns a page of the live jobs and the history rows. `first` is the position of the first row among all rows.
    pub(crate) fn page(&self, live: Vec<Item>, rows: Vec<Item>, first: usize) -> Vec<Item> {
        let mut items = live;
        items.extend(rows);
        items.sort_by(|one, other| {
            let order = self.order(one, other);
            if self.is_ascending { order } else { order.reverse() }
        });
        // A job before the first of these rows is before the page. Together with all live jobs and rows before it, its position is too low.
        items.into_iter().skip(self.offset.saturating_sub(first)).take(self.limit).collect()
    }

    fn takes(&self, item: &Item) -> bool {
        // `since` and `until` have a precision of seconds.
        let second = item.created.as_second();
        let has = |text: &str, part: &str| text.to_ascii_lowercase().contains(part);
        second >= self.since.as_second()
            && second <= self.until.as_second()
            && self.cluster.as_ref().is_none_or(|own| item.cluster_id == *own)
            && self.workspace.as_ref().is_none_or(|own| item.workspace_id == *own)
            && self.phase.is_none_or(|own| item.phase == own.word())
            && self.kind.is_none_or(|own| item.kind == own.word())
            && !self.is_of_no_type
            && (self.with_deleted || !item.is_deleted)
            && self.user_name.as_ref().is_none_or(|part| has(&item.user_name, part))
            && self.job_name.as_ref().is_none_or(|part| has(&item.job_name, part) || has(&item.job_id, part))
    }

    fn order(&self, one: &Item, other: &Item) -> Ordering {
        let text = |of: fn(&Item) -> &String| of(one).cmp(of(other));
        // An absent time sorts as the latest time.
        let time = |of: fn(&Item) -> &String| {
            let key = |item: &Item| (of(item).is_empty(), of(item).clone());
            key(one).cmp(&key(other))
        };
        let by = match self.sort_by {
            SortKey::JobId => text(|item| &item.job_id),
            SortKey::JobName => text(|item| &item.job_name),
            SortKey::Workspace => text(|item| &item.workspace_id),
            SortKey::UserId => text(|item| &item.user_id),
            SortKey::UserName => text(|item| &item.user_name),
            SortKey::Kind => text(|item| &item.kind),
            SortKey::Phase => text(|item| &item.phase),
            SortKey::Started => time(|item| &item.start_time),
            SortKey::Ended => time(|item| &item.end_time),
            SortKey::Deleted => time(|item| &item.deletion_time),
            SortKey::Timeout => one.timeout_second.cmp(&other.timeout_second),
            SortKey::Cluster | SortKey::Created => Ordering::Equal,
        };
        let place = |item: &Item| (item.created.as_second(), item.seq);
        by.then_with(|| place(one).cmp(&place(other))).then_with(|| one.uid.cmp(&other.uid))
    }
}

fn count(name: &str, text: &str, most: usize) -> Result<usize, OpsRefusal> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| is_number && *number <= most);
    let message =
        if most > MOST { "a whole number from 0".to_owned() } else { format!("a whole number from 0 to {most}") };
    number.ok_or_else(|| OpsRefusal::bad(format!("{name}: {message}")))
}

fn phase(word: &str) -> Result<Phase, OpsRefusal> {
    let known = Phase::ALL.map(Phase::word).join(", ");
    let found = Phase::ALL.into_iter().find(|phase| phase.word() == word);
    found.ok_or_else(|| OpsRefusal::bad(format!("phase: one of {known}")))
}

fn flag(name: &str, word: &str) -> Result<bool, OpsRefusal> {
    match word {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(OpsRefusal::bad(format!("{name}: true or false"))),
    }
}

/// Reads a time. Without a zone, it is UTC.
fn time(name: &str, text: &str) -> Result<Timestamp, OpsRefusal> {
    let wrong = || OpsRefusal::bad(format!("{name}: a time such as 2026-01-31T08:00:00Z"));
    // In a query, an unescaped plus sign of a zone offset becomes a space.
    let text = text.replace(' ', "+");
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    // The last day that can be written means forever.
    let day = text.strip_prefix("9999-12-31").is_some_and(|rest| rest.starts_with(['T', 't']));
    if day && text.trim_end_matches(['Z', 'z']).parse::<DateTime>().is_ok() {
        return Ok(Timestamp::MAX);
    }
    let civil: DateTime = text.parse().map_err(|_| wrong())?;
    let is_whole = text.contains(['T', 't']) && !text.contains('[') && !text.ends_with(['z', 'Z']);
    let zoned = civil.to_zoned(TimeZone::UTC).ok().filter(|_| is_whole);
    zoned.map(|zoned| zoned.timestamp()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_767_225_600).unwrap()
    }

    fn refused(query: &str) -> String {
        let refusal = ListQuery::read(Some(query), now()).expect_err(query);
        assert_eq!(refusal.code.status(), 400);
        refusal.message
    }

    #[test]
    fn what_is_malformed_or_repeated_is_named() {
        for (query, words) in [
            ("limit=-1", "limit: a whole"),
            ("limit=10001", "limit: a whole number from 0 to 10000"),
            ("limit=x", "limit: a whole"),
            ("offset=-1", "offset: a whole"),
            ("offset=%2B1", "offset: a whole"),
            ("order=up", "order: asc or desc"),
            ("deleted=yes", "deleted: true or false"),
            ("phase=foo", "phase: one of Pending"),
            ("since=yesterday", "since: a time"),
            ("since=2026-01-01", "since: a time"),
            ("since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "since: must not be later"),
            ("type=reboot&type=addon", "type: given twice"),
        ] {
            assert!(refused(query).starts_with(words), "{query}: {}", refused(query));
        }
    }

    #[test]
    fn what_is_unknown_or_empty_is_as_absent_and_times_have_any_zone() {
        let read = ListQuery::read(Some("foo=1&foo=2&limit=&phase=&sortBy=JOBNAME&order=asc"), now()).unwrap();
        assert_eq!((read.limit, read.sort_by, read.is_ascending, read.phase), (100, SortKey::JobName, true, None));
        assert_eq!(read.until.duration_since(read.since), BACK);
        let for_ever = ListQuery::read(Some("until=9999-12-31T23:59:59Z"), now()).unwrap();
        assert_eq!(for_ever.until, Timestamp::MAX);
        for same in [
            "2026-01-01T00:00:00Z",
            "2026-01-01T01:00:00%2B01:00",
            "2026-01-01T01:00:00+01:00",
            "2026-01-01T00:00:00.000",
        ] {
            let read = ListQuery::read(Some(&format!("since={same}")), now()).unwrap();
            assert_eq!(read.since, now(), "{same}");
        }
    }

    fn item(id: &str, second: i64) -> Item {
        Item {
            job_id: id.to_owned(),
            created: Timestamp::from_second(1_767_225_600 + second).unwrap(),
            uid: id.to_owned(),
            ..Item::default()
        }
    }

    #[test]
    fn a_type_that_is_not_here_takes_no_job_and_words_of_other_stores_sort_by_creation() {
        let live = || [Item { kind: "download".to_owned(), ..item("a", -9) }, item("b", -5)].into_iter();
        let query = ListQuery::read(Some("type=download"), now()).unwrap();
        assert!(query.taken(live()).is_empty() && query.rows("local", 0).is_none());
        for words in ["creation_time", "foo"] {
            let query = ListQuery::read(Some(&format!("sortBy={words}")), now()).unwrap();
            assert_eq!(query.sort_by, SortKey::Created, "{words}");
        }
    }

    #[test]
    fn jobs_of_one_second_are_in_the_order_in_which_the_controller_saw_them() {
        let placed = |id: &str, seq: i64| Item { seq, ..item(id, -5) };
        let query = ListQuery::read(Some("order=asc"), now()).unwrap();
        let page = query.page(vec![placed("z", 3), placed("a", 20)], vec![placed("m", 11), item("first", -6)], 0);
        assert_eq!(page.iter().map(|item| item.job_id.as_str()).collect::<Vec<_>>(), ["first", "z", "m", "a"]);
    }

    #[test]
    fn a_job_that_somebody_deleted_is_taken_only_where_such_are_asked_for() {
        let deleted = || [Item { is_deleted: true, ..item("a", -9) }, item("b", -5)].into_iter();
        let taken = |query: &str| {
            let query = ListQuery::read(Some(query), now()).unwrap();
            assert_eq!(query.filter(Viewer::All).with_deleted, query.with_deleted);
            query.taken(deleted()).len()
        };
        assert_eq!((taken(""), taken("deleted=false"), taken("deleted=true")), (1, 1, 2));
    }

    #[test]
    fn a_page_has_the_newest_first_and_a_time_that_is_not_there_is_the_latest() {
        let items = || [item("a", -9), item("b", -5), item("c", -5)].into_iter();
        let ids = |query: &str| {
            let query = ListQuery::read(Some(query), now()).unwrap();
            let live = query.taken(items());
            (live.len(), query.page(live, Vec::new(), 0).into_iter().map(|item| item.job_id).collect::<String>())
        };
        assert_eq!(ids(""), (3, "cba".to_owned()));
        assert_eq!(ids("order=asc&offset=1&limit=1"), (3, "b".to_owned()));
        assert_eq!(ids("jobName=B"), (1, "b".to_owned()));
        let ended = Item { end_time: "2026-01-01T00:00:00".to_owned(), ..item("z", -1) };
        let query = ListQuery::read(Some("sortBy=endTime&order=asc"), now()).unwrap();
        let sorted = query.page(items().chain([ended]).collect(), Vec::new(), 0);
        assert_eq!(sorted.first().map(|item| item.job_id.as_str()), Some("z"));
    }

    proptest! {
        /// The pages of live and gone jobs together are one sorted list, for any sort key and both directions. No job is lost or repeated.
        #[test]
        fn pages_of_what_lives_and_what_is_gone_are_those_of_one_list(
            jobs in proptest::collection::vec((0_i64..6, 0_u8..3, any::<bool>(), any::<bool>()), 0..40),
            sort in 0_usize..SORTS.len(),
            is_ascending in any::<bool>(),
            limit in 1_usize..7,
        ) {
            let all = jobs.iter().enumerate().map(|(number, (second, letter, has_ended, is_gone))| {
                let name = char::from(b'a' + letter).to_string();
                let end_time = if *has_ended { format!("2026-01-01T00:00:0{letter}") } else { String::new() };
                let job = item(&format!("{number:02}"), -second);
                (Item { job_name: name.clone(), kind: name, end_time, ..job }, *is_gone)
            });
            let (gone, live): (Vec<_>, Vec<_>) = all.partition(|(_, is_gone)| *is_gone);
            let [gone, live] = [gone, live].map(|part| part.into_iter().map(|(item, _)| item).collect::<Vec<Item>>());
            let order = if is_ascending { "asc" } else { "desc" };
            let query = |offset: usize, limit: usize| {
                let text = format!("sortBy={}&order={order}&offset={offset}&limit={limit}", SORTS[sort].0);
                ListQuery::read(Some(&text), now()).unwrap()
            };
            let ids = |items: Vec<Item>| items.into_iter().map(|item| item.uid).collect::<Vec<String>>();
            let whole = query(0, MOST);
            let (one_list, rows) = (ids(whole.page([live.clone(), gone.clone()].concat(), Vec::new(), 0)), whole.page(gone, Vec::new(), 0));
            let mut paged = Vec::new();
            for offset in (0..jobs.len()).step_by(limit) {
                let query = query(offset, limit);
                let window = query.rows("local", live.len()).unwrap();
                let found: Vec<Item> = rows.iter().skip(window.offset).take(window.limit).cloned().collect();
                let page = query.page(live.clone(), found, window.offset);
                prop_assert_eq!(page.len(), limit.min(jobs.len() - offset));
                paged.extend(ids(page));
            }
            prop_assert_eq!(paged, one_list);
        }
    }
}
