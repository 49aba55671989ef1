//! The object that replaces a target, for the relation `same-controller`.

/// The most candidates that the relation shows to a plugin.
pub const CANDIDATES: usize = 16;

/// The time for a controller to create an object in place of a target, in seconds. A controller that creates none in this time already has
/// all objects that it wants. It may have created one too many before, for example after the reply to an earlier request was lost.
pub const MADE_BY_THEN_SECONDS: u32 = 10;

/// Returns the kind and the UID of the controller in the extra [`OWNER`](crate::extras::OWNER), which is `kind/name/uid`.
pub fn controller(owner: &str) -> Option<(&str, &str)> {
    let (kind, name_and_uid) = owner.split_once('/')?;
    Some((kind, name_and_uid.rsplit('/').next()?))
}

/// Returns true if a controller of `kind` gives the new object the name of the old object.
pub fn keeps_name(kind: &str) -> bool {
    kind == "StatefulSet"
}

/// Returns true if a controller of `kind` places the new object on the node of the old object.
pub fn keeps_node(kind: &str) -> bool {
    kind == "DaemonSet"
}

/// Returns the objects that were created since the target was asked to terminate. If there are none and it is time for surplus objects,
/// returns the surplus of the controller. `made_since` returns the unclaimed objects since a time.
pub fn candidates<T, O>(since: T, surplus_since: Option<T>, made_since: impl Fn(T) -> Vec<O>) -> Vec<O> {
    let found = made_since(since);
    match surplus_since.filter(|_| found.is_empty()) {
        Some(since) => made_since(since),
        None => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_is_read_from_the_extra_of_the_host() {
        assert_eq!(controller("ReplicaSet/web/u-1"), Some(("ReplicaSet", "u-1")));
        assert_eq!(controller("nonsense"), None);
    }

    #[test]
    fn surplus_is_shown_only_where_nothing_was_made_since() {
        let made = |all: &'static [u32]| move |since: u32| all.iter().copied().filter(|at| *at >= since).collect();
        assert_eq!(candidates(5, Some(1), made(&[2, 7])), [7]);
        assert_eq!(candidates(5, Some(1), made(&[2])), [2]);
        assert_eq!(candidates(5, None, made(&[2])), [] as [u32; 0]);
    }
}
