//! Children by their place, by their owner and by their template: each table finds them by the strings that their views have.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use oarlock_core::child::view::{ChildKind, ChildView};

/// A child that is found by its name, among those of one kind and namespace.
pub(super) struct ByName(pub(super) Arc<ChildView>);

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl Ord for ByName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name.cmp(&other.0.name)
    }
}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByName {}

/// A child that is found by its UID, among those of one owner.
struct ByUid(Arc<ChildView>);

impl Borrow<str> for ByUid {
    fn borrow(&self) -> &str {
        &self.0.uid
    }
}

impl Ord for ByUid {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.uid.cmp(&other.0.uid)
    }
}

impl PartialOrd for ByUid {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByUid {}

/// The children that are there, by kind, namespace and name.
#[derive(Default)]
pub(super) struct Places {
    jobs: HashMap<String, BTreeSet<ByName>>,
    operations: HashMap<String, BTreeSet<ByName>>,
}

impl Places {
    fn of(&self, kind: ChildKind) -> &HashMap<String, BTreeSet<ByName>> {
        match kind {
            ChildKind::Job => &self.jobs,
            ChildKind::Operation => &self.operations,
        }
    }

    fn of_mut(&mut self, kind: ChildKind) -> &mut HashMap<String, BTreeSet<ByName>> {
        match kind {
            ChildKind::Job => &mut self.jobs,
            ChildKind::Operation => &mut self.operations,
        }
    }

    /// The child that was last seen at the place of this one.
    pub(super) fn at(&self, child: &ChildView) -> Option<&Arc<ChildView>> {
        let named = self.of(child.kind).get(&child.namespace)?;
        named.get(child.name.as_str()).map(|found| &found.0)
    }

    /// All children of a kind.
    pub(super) fn all(&self, kind: ChildKind) -> impl Iterator<Item = &Arc<ChildView>> {
        self.of(kind).values().flatten().map(|found| &found.0)
    }

    /// Puts a child at its place.
    pub(super) fn put(&mut self, child: Arc<ChildView>) {
        let all = self.of_mut(child.kind);
        if !all.contains_key(&child.namespace) {
            all.insert(child.namespace.clone(), BTreeSet::new());
        }
        if let Some(named) = all.get_mut(&child.namespace) {
            named.replace(ByName(child));
        }
    }

    /// Clears the place of a child.
    pub(super) fn clear(&mut self, child: &ChildView) {
        let all = self.of_mut(child.kind);
        let Some(named) = all.get_mut(&child.namespace) else { return };
        named.remove(child.name.as_str());
        if named.is_empty() {
            all.remove(&child.namespace);
        }
    }
}

/// The children of each owner, by namespace and by their UIDs; those that are gone until a round has judged them. Anybody may write
/// the UID of an owner elsewhere, so an owner has those of its own namespace.
#[derive(Default)]
pub(super) struct Families(HashMap<String, HashMap<String, BTreeSet<ByUid>>>);

impl Families {
    /// The children of an owner.
    pub(super) fn of(&self, namespace: &str, owner: &str) -> impl Iterator<Item = &Arc<ChildView>> {
        self.0.get(namespace).and_then(|owners| owners.get(owner)).into_iter().flatten().map(|found| &found.0)
    }

    /// This child as it is in the family of its owner.
    pub(super) fn get(&self, child: &ChildView) -> Option<&Arc<ChildView>> {
        let family = self.0.get(&child.namespace)?.get(child.owner_uid.as_deref()?)?;
        family.get(child.uid.as_str()).map(|found| &found.0)
    }

    /// True where the owner of this child has children.
    pub(super) fn has_owner(&self, child: &ChildView) -> bool {
        let owners = self.0.get(&child.namespace);
        owners.zip(child.owner_uid.as_ref()).is_some_and(|(owners, owner)| owners.contains_key(owner))
    }

    /// Adds a child to its owner's.
    pub(super) fn put(&mut self, child: Arc<ChildView>) {
        let Some(owner) = child.owner_uid.clone() else { return };
        let owners = self.0.entry(child.namespace.clone()).or_default();
        owners.entry(owner).or_default().replace(ByUid(child));
    }

    /// Takes a child from its owner's.
    pub(super) fn remove(&mut self, child: &ChildView) {
        let Some(owner) = &child.owner_uid else { return };
        self.retain(&child.namespace, owner, |kept| kept.uid != child.uid);
    }

    /// Keeps those that are there.
    pub(super) fn forget_gone(&mut self) {
        self.0.retain(|_, owners| {
            owners.retain(|_, children| {
                children.retain(|child| !child.0.gone);
                !children.is_empty()
            });
            !owners.is_empty()
        });
    }

    /// Keeps those children of an owner.
    pub(super) fn retain(&mut self, namespace: &str, owner: &str, is_kept: impl Fn(&ChildView) -> bool) {
        let Some(owners) = self.0.get_mut(namespace) else { return };
        let Some(children) = owners.get_mut(owner) else { return };
        children.retain(|child| is_kept(&child.0));
        if children.is_empty() {
            owners.remove(owner);
        }
        if owners.is_empty() {
            self.0.remove(namespace);
        }
    }
}
