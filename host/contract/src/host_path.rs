//! The directories of nodes: which directories a check may see, and which directories lie in others.
//!
//! Paths are compared by whole parts, and a path with `..` is invalid. This module does not know what a path leads to on a node.

use crate::names::is_plain;

/// In a manifest, all directories that the grant names. The document of a grant may not list this path.
pub const ANY_HOST_PATH: &str = "/";

/// Directories that no check may see, with everything below them, whatever is granted. Their content compromises the node or the cluster:
/// credentials, sockets of root processes, files of other pods, devices, and the host's own markers.
const DENIED: &[&str] = &[
    // Directories of the system.
    "/etc",
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/var/run",
    "/boot",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/etc",
    // A second copy of the whole system, if it is deployed as an image.
    "/sysroot",
    "/ostree",
    "/system",
    // Directories of users.
    "/root",
    "/home",
    "/var/home",
    "/var/roothome",
    "/tmp",
    "/var/tmp",
    "/var/spool",
    "/var/mail",
    "/var/backups",
    // Directories of Kubernetes.
    "/var/lib/kubelet",
    "/var/lib/kubernetes",
    "/var/lib/kube-proxy",
    "/var/lib/kube-router",
    "/var/lib/etcd",
    "/var/lib/rancher",
    "/var/lib/k0s",
    "/var/lib/k3s",
    "/var/lib/microk8s",
    "/var/lib/minikube",
    "/var/lib/cni",
    "/var/lib/cilium",
    "/var/lib/calico",
    // Directories of runtimes of containers and of virtual machines.
    "/var/lib/containerd",
    "/var/lib/docker",
    "/var/lib/dockershim",
    "/var/lib/cri-dockerd",
    "/var/lib/containers",
    "/var/lib/crio",
    "/var/lib/buildkit",
    "/var/lib/nerdctl",
    "/var/lib/lxc",
    "/var/lib/lxcfs",
    "/var/lib/lxd",
    "/var/lib/incus",
    "/var/lib/libvirt",
    "/var/lib/machines",
    "/var/lib/portables",
    "/var/lib/snapd",
    "/var/snap",
    "/snap",
    // Private directories of a cloud and of the system's services.
    "/var/lib/cloud",
    "/var/lib/waagent",
    "/var/lib/amazon",
    "/var/lib/google",
    "/var/lib/systemd",
    "/var/lib/private",
    "/var/lib/sss",
    "/var/lib/NetworkManager",
    "/var/lib/ceph",
    "/var/vcap",
    "/var/lib/oarlock",
];

/// Further directories that no check may see: the logs of other pods. They are empty for a check that may see a directory above them.
const COVERED: [&str; 2] = ["/var/log/pods", "/var/log/containers"];

/// Returns true if this is the absolute path of a directory in its shortest form, other than the root.
pub(crate) fn is_directory(path: &str) -> bool {
    path.starts_with('/')
        && is_plain(path)
        && !path.contains([':', '*'])
        && path.split('/').skip(1).all(|part| !["", ".", ".."].contains(&part))
}

/// Returns true if `path` is `directory` or lies below it.
pub(crate) fn is_in(directory: &str, path: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns true if a check may see a directory with everything below it. The directory may contain no denied directories except covered
/// ones.
pub(crate) fn may_be_seen(path: &str) -> bool {
    let holds_denied = DENIED.iter().any(|place| is_in(place, path) || is_in(path, place));
    is_directory(path) && !holds_denied && !COVERED.iter().any(|place| is_in(place, path))
}

/// Returns the directories in `path` that the host must cover for a check that sees `path`.
pub fn covered_in(path: &str) -> impl Iterator<Item = &'static str> {
    COVERED.into_iter().filter(move |place| is_in(path, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_holds_or_lies_in_what_gives_the_node_away() {
        for path in [
            "/",
            "",
            "etc",
            "/etc",
            "/etc/ssl",
            "/var",
            "/var/lib",
            "/usr",
            "/usr/local",
            "/usr/local/bin",
            "/opt/../etc",
            "/opt//x",
            "/opt/",
            "/opt/.",
            "/opt/*",
            "/opt:ro",
            "/run/containerd",
            "/var/run/docker.sock",
            "/dev/mem",
            "/boot",
            "/root/.ssh",
            "/home",
            "/home/core",
            "/var/home/core",
            "/var/roothome",
            "/sysroot/ostree",
            "/tmp",
            "/var/tmp/x",
            "/var/lib/docker/volumes",
            "/var/lib/containers",
            "/var/lib/rancher/k3s",
            "/var/lib/k0s/pki",
            "/var/lib/crio",
            "/var/lib/cloud/instance",
            "/var/lib/kubelet/pki",
            "/var/lib/etcd/member",
            "/var/lib/oarlock",
            "/var/snap",
            "/var/snap/microk8s/common/run",
            "/var/lib/snapd",
            "/var/log/pods",
            "/var/log/pods/a",
            "/var/log/containers",
            "/var/lib/systemd",
            "/var/spool/cron",
            "/proc/1/root",
            "/sys/fs/cgroup",
        ] {
            assert!(!may_be_seen(path), "{path}");
        }
        for path in [
            "/opt",
            "/opt/tools",
            "/data",
            "/etcetera",
            "/mnt/disk",
            "/srv",
            "/usr/share",
            "/usr/local/share",
            "/lib/modules",
            "/var/log",
            "/var/log/journal",
            "/var/log/podsandmore",
            "/var/lib/node_exporter",
            "/var/lib/kubelet2",
        ] {
            assert!(may_be_seen(path), "{path}");
        }
    }

    #[test]
    fn every_path_that_is_denied_is_a_directory_in_its_shortest_form() {
        assert!(DENIED.iter().chain(&COVERED).all(|path| is_directory(path)));
    }

    #[test]
    fn the_logs_of_other_pods_are_covered_where_the_path_holds_them() {
        let covered = |path: &str| covered_in(path).collect::<Vec<_>>();
        assert_eq!(covered("/var/log"), ["/var/log/pods", "/var/log/containers"]);
        assert_eq!((covered("/var/log/journal"), covered("/opt")), (vec![], vec![]));
    }
}
