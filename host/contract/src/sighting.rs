//! The host's knowledge of an object: it exists, it is absent, or its state is unknown.

/// The host's knowledge of an object.
#[derive(Clone, Debug)]
pub enum Sighting<T> {
    /// Neither a watch nor a live read shows whether the object exists.
    Unread,
    /// The object does not exist.
    Absent,
    /// The object exists.
    Found(T),
}

impl<T> Sighting<T> {
    /// Returns the object, if it exists.
    pub fn found(self) -> Option<T> {
        match self {
            Self::Found(object) => Some(object),
            Self::Unread | Self::Absent => None,
        }
    }

    /// Applies `part` to the object, if it exists.
    pub fn map<U>(self, part: impl FnOnce(T) -> U) -> Sighting<U> {
        match self {
            Self::Unread => Sighting::Unread,
            Self::Absent => Sighting::Absent,
            Self::Found(object) => Sighting::Found(part(object)),
        }
    }
}
