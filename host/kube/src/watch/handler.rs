//! The receiver of the items of a list and of its watch.

use std::sync::Arc;

use oarlock_core::object::memory::NamespaceShares;
use serde_json::Value;

use crate::transport::projection::Projection;

/// The cache for the objects of one kind.
pub(crate) trait EventHandler: Send + Sync + 'static {
    /// The kept part of an object.
    type Item: Send;
    /// Returns the projection for documents of this kind.
    fn projection(&self) -> Arc<Projection>;
    /// Returns the field selector of the list and the watch, if they are only for some objects.
    fn selector(&self) -> Option<&str> {
        None
    }
    /// Returns the kept part of a document, or `None` if the document is not an object.
    fn pick(&self, document: Value) -> Option<Self::Item>;
    /// Returns the part of a list item for which there is room besides the items that were listed before. The items of an unfinished list
    /// are not in the cache, which checks the room again.
    fn fitting(&self, item: Self::Item, _listed: &mut NamespaceShares) -> Self::Item {
        item
    }
    /// Takes a whole list.
    fn listed(&self, items: Vec<Self::Item>, version: u64);
    /// Takes a created or changed object.
    fn changed(&self, item: Self::Item);
    /// Takes the last view of a deleted object.
    fn deleted(&self, item: Self::Item);
}
