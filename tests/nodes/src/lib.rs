//! A real cluster on one Linux machine: etcd, API server, controller manager, scheduler, and nodes with kubelet and
//! containerd.
//!
//! The crate takes binaries, images and a folder, and starts a cluster. The cluster lives in its own network, mount,
//! PID, UTS and IPC namespaces, and each node in further namespaces within. Addresses are therefore fixed, and two
//! clusters do not meet. When the first process of the outer namespaces ends, the kernel removes processes, links,
//! routes and mounts. `down` removes the folder and the cgroups. The next `up` removes them too if the lock of the
//! folder shows that the cluster is dead. The cluster has no kube-proxy and no DNS: pods reach the API server, but no
//! Service. NetworkPolicies have no effect.

pub mod certificates;
pub mod cgroups;
pub mod image;
pub mod inner;
pub mod keeper;
pub mod layout;
pub mod outer;
pub mod reaper;
pub mod run;
pub mod states;
