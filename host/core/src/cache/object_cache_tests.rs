//! Tests of the cache of the objects of one kind.

use super::*;

/// An object with a note that only its first view has.
#[derive(Clone, Debug, PartialEq)]
struct Note {
    name: &'static str,
    uid: &'static str,
    version: u64,
    owner: Option<&'static str>,
    bytes: usize,
    spec: Result<(), String>,
    first: u64,
}

fn note(name: &'static str, uid: &'static str, version: u64) -> Note {
    Note { name, uid, version, owner: None, bytes: 0, spec: Ok(()), first: version }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::pod("d", name)
}

impl CachedObject for Note {
    fn key(&self) -> ObjectKey {
        key(self.name)
    }

    fn uid(&self) -> &str {
        self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn owner_uid(&self) -> Option<&str> {
        self.owner
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn without_spec(self, why: &str) -> Self {
        Self { bytes: 0, spec: Err(why.to_owned()), ..self }
    }

    fn after(self, before: &Self) -> Self {
        Self { first: before.first, ..self }
    }
}

fn version(cache: &ObjectCache<Note>, name: &str) -> Option<u64> {
    cache.get(&key(name)).map(|note| note.version)
}

#[test]
fn the_newest_version_wins_and_keeps_what_the_first_one_showed() {
    let mut cache = ObjectCache::default();
    assert!(matches!(cache.put(note("a", "u", 5)), CacheChange::Newer));
    assert!(matches!(cache.put(note("a", "u", 4)), CacheChange::Older));
    assert!(matches!(cache.put(note("a", "u", 5)), CacheChange::Older));
    cache.put(note("a", "u", 7));
    assert_eq!(cache.get(&key("a")).map(|note| (note.version, note.first)), Some((7, 5)));
    assert_eq!(cache.take_dirty(), BTreeSet::from([key("a")]));
    assert!(cache.take_dirty().is_empty());
}

#[test]
fn a_deleted_object_does_not_come_back_from_an_older_event() {
    let mut cache = ObjectCache::default();
    cache.put(note("a", "u", 5));
    assert!(cache.remove(&key("a"), "other").is_none(), "another object of the name was deleted");
    assert!(cache.remove(&key("a"), "u").is_some());
    cache.put(note("a", "u", 9));
    assert_eq!(version(&cache, "a"), None);
    cache.put(note("a", "v", 10));
    assert_eq!(version(&cache, "a"), Some(10));
}

#[test]
fn an_object_that_a_list_lacks_comes_back_with_the_next_one() {
    let mut cache = ObjectCache::default();
    cache.put(note("a", "u", 5));
    assert!(cache.forget(&key("a"), "u").is_some());
    assert_eq!(version(&cache, "a"), None);
    cache.put(note("a", "u", 5));
    assert_eq!(version(&cache, "a"), Some(5), "the kind was not served for a moment");
}

#[test]
fn a_namesake_takes_the_place_of_an_object_that_nobody_saw_go() {
    let mut cache = ObjectCache::default();
    cache.put(note("a", "u", 5));
    assert!(matches!(cache.put(note("a", "v", 8)), CacheChange::InPlaceOf(other) if other.uid == "u"));
    cache.put(note("a", "u", 9));
    assert_eq!((version(&cache, "a"), cache.by_uid("u").is_none(), cache.by_uid("v").is_some()), (Some(8), true, true));
}

#[test]
fn a_list_drops_what_it_lacks_but_nothing_that_is_newer() {
    let mut cache = ObjectCache::default();
    [note("a", "u", 5), note("b", "v", 6), note("c", "w", 12)].into_iter().for_each(|note| drop(cache.put(note)));
    let absent = cache.absent_from(&HashSet::from(["u".to_owned()]), 10);
    assert_eq!(absent.iter().map(|note| note.name).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn a_view_is_uncertain_until_a_newer_one_or_a_read_comes() {
    let mut cache = ObjectCache::default();
    cache.put(note("a", "u", 5));
    cache.doubt(&key("a"));
    assert!(matches!(cache.view(&key("a")), CachedView::Uncertain));
    cache.put(note("a", "u", 5));
    assert!(matches!(cache.view(&key("a")), CachedView::Uncertain), "an old event");
    cache.confirm(&key("a"), None, None);
    assert!(matches!(cache.view(&key("a")), CachedView::Certain(Some(note)) if note.version == 5));
    cache.doubt(&key("a"));
    cache.put(note("a", "u", 6));
    assert!(matches!(cache.view(&key("a")), CachedView::Certain(Some(note)) if note.version == 6));
    cache.doubt(&key("a"));
    cache.remove(&key("a"), "u");
    assert!(matches!(cache.view(&key("a")), CachedView::Certain(None)));
}

#[test]
fn the_objects_of_an_owner_are_found_until_they_go_or_change_their_owner() {
    let mut cache = ObjectCache::default();
    let of = |name, uid, version, owner| Note { owner, ..note(name, uid, version) };
    let names =
        |cache: &ObjectCache<Note>, owner: &str| -> Vec<&str> { cache.owned_by(owner).map(|note| note.name).collect() };
    [of("b", "2", 1, Some("o")), of("a", "1", 2, Some("o")), of("c", "3", 3, Some("p"))]
        .into_iter()
        .for_each(|note| drop(cache.put(note)));
    assert_eq!((names(&cache, "o"), names(&cache, "p")), (vec!["a", "b"], vec!["c"]));
    cache.put(of("a", "1", 4, Some("p")));
    cache.remove(&key("b"), "2");
    assert_eq!((names(&cache, "o"), names(&cache, "p")), (vec![], vec!["a", "c"]));
}

#[test]
fn an_object_without_room_stays_without_its_spec_and_harms_no_other_namespace() {
    let room = MemoryBudget::default();
    room.bound(64 * 1024 * 1024);
    let mut cache = ObjectCache::within(&room);
    let large = |name, uid, version| Note { bytes: 3 * 1024 * 1024, ..note(name, uid, version) };
    cache.put(large("a", "1", 1));
    cache.put(large("b", "2", 2));
    let reads = |cache: &ObjectCache<Note>, name: &str| cache.get(&key(name)).is_some_and(|note| note.spec.is_ok());
    assert_eq!((reads(&cache, "a"), reads(&cache, "b")), (true, false));
    cache.remove(&key("a"), "1");
    cache.put(large("b", "2", 3));
    assert!(reads(&cache, "b"), "the room of the deleted object is free again");
}

#[test]
fn keys_of_deleted_objects_do_not_pile_up_while_nobody_takes_them() {
    let mut cache = ObjectCache::default();
    let names: Vec<&'static str> =
        (0..DIRTY + 10).map(|number| &*Box::leak(number.to_string().into_boxed_str())).collect();
    for (version, name) in (1..).zip(names) {
        cache.put(note(name, name, version));
        cache.remove(&key(name), name);
    }
    assert!(cache.take_dirty().len() <= DIRTY + 2);
    assert!(cache.gone.len() <= TOMBSTONES);
}
