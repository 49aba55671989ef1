//! The name of a pod whose logs or image the host reads.

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPod {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub name: String,
    /// The UID of the pod.
    pub uid: String,
}
