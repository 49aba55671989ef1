//! A real cluster on one Linux machine: etcd, API server, controller manager, scheduler, and nodes with kubelet and containerd.
//!
//! Takes binaries, images and a folder; yields a running cluster. All of it lives in network, mount, PID, UTS and IPC namespaces of
//! its own, and each node in further ones within, so addresses are fixed, two clusters do not meet, and whatever ends the first
//! process of the outer namespaces removes processes, links, routes and mounts. The folder and the cgroups are removed by `down`, or by
//! the next `up`, which finds by a lock which clusters are dead. There is no kube-proxy and no DNS: pods reach the API server, and no
//! Service; NetworkPolicies are not felt.

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
