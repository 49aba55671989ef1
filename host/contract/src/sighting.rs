//! What is known of an object: that it is there, that it is not, or nothing.

/// What is known of an object.
#[derive(Clone, Debug)]
pub enum Sighting<T> {
    /// Neither a watch nor a live read says whether it is there.
    Unread,
    /// It is not there.
    Absent,
    /// It is there.
    Found(T),
}

impl<T> Sighting<T> {
    /// The object, if it is there.
    pub fn found(self) -> Option<T> {
        match self {
            Self::Found(object) => Some(object),
            Self::Unread | Self::Absent => None,
        }
    }

    /// The same, of a part of the object.
    pub fn map<U>(self, part: impl FnOnce(T) -> U) -> Sighting<U> {
        match self {
            Self::Unread => Sighting::Unread,
            Self::Absent => Sighting::Absent,
            Self::Found(object) => Sighting::Found(part(object)),
        }
    }
}
