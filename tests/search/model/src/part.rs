//! A piece of a state that most steps leave as it is. States share it, and its hash is computed once.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use ahash::RandomState;

/// A value and its hash.
#[derive(Debug)]
pub struct Part<T>(Arc<Hashed<T>>);

#[derive(Debug)]
struct Hashed<T> {
    hash: OnceLock<u64>,
    value: T,
}

impl<T> Part<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Hashed { hash: OnceLock::new(), value }))
    }
}

impl<T: Hash> Part<T> {
    fn hash(&self) -> u64 {
        *self.0.hash.get_or_init(|| hash_of(&self.0.value))
    }
}

/// Returns the hash of a value. The hash is the same in every run.
pub fn hash_of(value: impl Hash) -> u64 {
    RandomState::with_seeds(1, 2, 3, 4).hash_one(value)
}

impl<T: Clone> Part<T> {
    /// Changes the value. Other owners keep the old value.
    pub fn edit<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        if let Some(own) = Arc::get_mut(&mut self.0) {
            own.hash = OnceLock::new();
            return change(&mut own.value);
        }
        let mut value = self.0.value.clone();
        let result = change(&mut value);
        *self = Self::new(value);
        result
    }

    /// Returns the value, cloned if other owners share it.
    pub fn take(self) -> T {
        Arc::try_unwrap(self.0).map_or_else(|shared| shared.value.clone(), |own| own.value)
    }
}

impl<T: Default> Default for Part<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Hash> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(Part::hash(self));
    }
}

impl<T: Hash> PartialEq for Part<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || Part::hash(self) == Part::hash(other)
    }
}

impl<T: Hash> Eq for Part<T> {}
