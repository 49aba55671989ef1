//! Directories of nodes, by path: which a check may see, and which lie in another.
//!
//! Paths are compared by whole parts, and one with `..` in it is none. What a path leads to on a node is not known here.

use crate::names::is_plain;

/// In a manifest: those directories that the grant names. In a grant: every one that a check may see.
pub const ANY_HOST_PATH: &str = "/";

/// Directories that no check may see, whatever is granted, and all below them: what they hold gives the node away, or the
/// host's own markers.
const DENIED: [&str; 12] = [
    "/etc",
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/var/run",
    "/boot",
    "/root",
    "/var/lib/kubelet",
    "/var/lib/etcd",
    "/var/lib/containerd",
    "/var/lib/oarlock",
];

/// True for the absolute path of a directory, in its shortest form, other than the root.
pub(crate) fn is_directory(path: &str) -> bool {
    path.starts_with('/')
        && is_plain(path)
        && !path.contains([':', '*'])
        && path.split('/').skip(1).all(|part| !["", ".", ".."].contains(&part))
}

/// True if `path` is `directory` or lies below it.
pub(crate) fn is_in(directory: &str, path: &str) -> bool {
    directory == ANY_HOST_PATH
        || path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// True for a directory of which no check may see anything.
pub(crate) fn is_denied(path: &str) -> bool {
    DENIED.iter().any(|place| is_in(place, path))
}

/// True if a check may see a directory with all below it.
pub(crate) fn may_be_seen(path: &str) -> bool {
    is_directory(path) && !is_denied(path) && !DENIED.iter().any(|place| is_in(path, place))
}
