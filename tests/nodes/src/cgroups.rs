//! The control groups of a cluster: one for each node, in every hierarchy of the machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

const MOUNT: &str = "/sys/fs/cgroup";

/// Returns the hierarchies of the machine: one of version 2, or one for each controller of version 1.
#[must_use]
pub fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from(MOUNT);
    if root.join("cgroup.controllers").exists() {
        return vec![root];
    }
    let folders = fs::read_dir(&root).into_iter().flatten().flatten();
    folders.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

/// Returns true if the machine has only version 2.
#[must_use]
pub fn is_unified() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

/// Returns the name of a cluster's group in each hierarchy.
#[must_use]
pub fn name_of(id: &str) -> String {
    format!("oarlock-{id}")
}

/// Creates the group `name`, such as `oarlock-id/node-1`, in every hierarchy.
///
/// # Errors
///
/// If the machine has no control groups, or does not allow their creation.
pub fn make(name: &str) -> anyhow::Result<()> {
    let all = hierarchies();
    if all.is_empty() {
        bail!("{MOUNT} has no control groups: mount them, or use a machine that has some");
    }
    for hierarchy in all {
        let path = hierarchy.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make the control group {}", path.display()))?;
        if is_unified() {
            delegate(&hierarchy, name);
        } else {
            inherit_cpus(&hierarchy, name);
        }
    }
    Ok(())
}

/// Enables all controllers for the group's parents. In version 2, a group has only the controllers that its parent
/// enables.
fn delegate(hierarchy: &Path, name: &str) {
    let mut path = hierarchy.to_owned();
    for part in Path::new(name) {
        let offered = fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
        for controller in offered.split_whitespace() {
            // A controller that this write cannot enable is missing below, and the kubelet reports that.
            let _ = fs::write(path.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        path.push(part);
    }
}

/// Gives the group CPUs and memory nodes. In version 1, a new group of cpuset has none.
fn inherit_cpus(hierarchy: &Path, name: &str) {
    let mut path = hierarchy.to_owned();
    for part in Path::new(name) {
        let above = path.clone();
        path.push(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(text) = fs::read_to_string(above.join(file)) {
                let _ = fs::write(path.join(file), text);
            }
        }
    }
}

/// Returns true if a hierarchy has the group.
#[must_use]
pub fn exists(name: &str) -> bool {
    hierarchies().iter().any(|hierarchy| hierarchy.join(name).exists())
}

/// Removes the group `name` and the groups below it, except groups with running processes.
pub fn remove(name: &str) {
    for hierarchy in hierarchies() {
        remove_tree(&hierarchy.join(name));
    }
}

/// Removes the groups below `name`, except groups with running processes.
pub fn remove_below(name: &str) {
    for hierarchy in hierarchies() {
        for entry in fs::read_dir(hierarchy.join(name)).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_tree(&entry.path());
            }
        }
    }
}

fn remove_tree(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}
