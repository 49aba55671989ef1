//! Indexes of children by place, by owner and by template. Each index finds a child by strings that its view has.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use oarlock_core::attempts::view::{ChildKind, ChildView};

/// A child in an index by name, among the children of one kind and namespace.
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

/// A child in an index by UID, among the children of one owner.
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

/// The existing children, by kind, namespace and name.
#[derive(Default)]
pub(super) struct ChildrenByName {
    jobs: HashMap<String, BTreeSet<ByName>>,
    operations: HashMap<String, BTreeSet<ByName>>,
}

impl ChildrenByName {
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

    /// Returns the child that was last seen at the place of this child.
    pub(super) fn at(&self, child: &ChildView) -> Option<&Arc<ChildView>> {
        let named = self.of(child.kind).get(&child.namespace)?;
        named.get(child.name.as_str()).map(|found| &found.0)
    }

    /// Returns all children of a kind.
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

    /// Removes a child from its place.
    pub(super) fn clear(&mut self, child: &ChildView) {
        let all = self.of_mut(child.kind);
        let Some(named) = all.get_mut(&child.namespace) else { return };
        named.remove(child.name.as_str());
        if named.is_empty() {
            all.remove(&child.namespace);
        }
    }
}

/// The children of each owner, by namespace and UID. Deleted children stay until a round has judged them. The index separates namespaces,
/// because any user may write the UID of an owner into an object of another namespace.
#[derive(Default)]
pub(super) struct ChildrenByOwner(HashMap<String, HashMap<String, BTreeSet<ByUid>>>);

impl ChildrenByOwner {
    /// Returns the children of an owner.
    pub(super) fn of(&self, namespace: &str, owner: &str) -> impl Iterator<Item = &Arc<ChildView>> {
        self.0.get(namespace).and_then(|owners| owners.get(owner)).into_iter().flatten().map(|found| &found.0)
    }

    /// Returns this child as the index of its owner has it.
    pub(super) fn get(&self, child: &ChildView) -> Option<&Arc<ChildView>> {
        let family = self.0.get(&child.namespace)?.get(child.owner_uid.as_deref()?)?;
        family.get(child.uid.as_str()).map(|found| &found.0)
    }

    /// Returns true if the owner of this child has children.
    pub(super) fn has_owner(&self, child: &ChildView) -> bool {
        let owners = self.0.get(&child.namespace);
        owners.zip(child.owner_uid.as_ref()).is_some_and(|(owners, owner)| owners.contains_key(owner))
    }

    /// Adds a child to the children of its owner.
    pub(super) fn put(&mut self, child: Arc<ChildView>) {
        let Some(owner) = child.owner_uid.clone() else { return };
        let owners = self.0.entry(child.namespace.clone()).or_default();
        owners.entry(owner).or_default().replace(ByUid(child));
    }

    /// Removes a child from the children of its owner.
    pub(super) fn remove(&mut self, child: &ChildView) {
        let Some(owner) = &child.owner_uid else { return };
        self.retain(&child.namespace, owner, |kept| kept.uid != child.uid);
    }

    /// Drops all deleted children.
    pub(super) fn forget_gone(&mut self) {
        self.0.retain(|_, owners| {
            owners.retain(|_, children| {
                children.retain(|child| !child.0.gone);
                !children.is_empty()
            });
            !owners.is_empty()
        });
    }

    /// Keeps only the children of an owner for which `is_kept` returns true.
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
