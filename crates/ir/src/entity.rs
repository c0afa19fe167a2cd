//! Dense typed identifiers, and tables indexed by them.
//!
//! An id is a `u32` that counts from zero inside one trace or one schedule. Different kinds of ids are different types, so that a
//! tensor cannot be looked up among buffers. Ids print with a letter: `op3 t7 s2 b12 a40`.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

/// Interface of all identifiers: they count from zero within their table.
pub trait Id: Copy + Eq + Ord + fmt::Display {
    /// The id at a position of its table.
    ///
    /// # Panics
    /// Past `u32::MAX`, which no input can reach: readers limit lengths first.
    fn new(index: usize) -> Self;
    /// The position in its table.
    fn index(self) -> usize;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The letters with which the id prints.
            pub const PREFIX: &str = $prefix;
        }

        impl Id for $name {
            #[inline]
            fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("a table holds fewer than 2^32 entries"))
            }
            #[inline]
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

ids! {
    /// One operation of a trace.
    OpId = "op";
    /// One tensor: written once, by one op, or present when the iteration begins.
    TensorId = "t";
    /// One storage: the bytes that successive tensors share if ops write in place.
    StorageId = "s";
    /// One residency of a storage in the arena, or one action's workspace.
    BufferId = "b";
    /// One action of a schedule; its number is its position in the total order.
    ActionId = "a";
}

/// A vector indexed by a typed id.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Table<K, V> {
    rows: Vec<V>,
    #[serde(skip)]
    key: PhantomData<fn(K)>,
}

impl<K: Id, V> Table<K, V> {
    /// An empty table.
    pub const fn new() -> Self {
        Self { rows: Vec::new(), key: PhantomData }
    }

    /// A table of `len` copies of one row.
    pub fn filled(len: usize, row: V) -> Self
    where
        V: Clone,
    {
        Self::from(vec![row; len])
    }

    /// Appends a row and returns its id.
    pub fn push(&mut self, row: V) -> K {
        let id = self.next_id();
        self.rows.push(row);
        id
    }

    /// The id that the next [`push`](Self::push) will return.
    pub fn next_id(&self) -> K {
        K::new(self.rows.len())
    }

    /// The row of an id, or `None` if the table is shorter: for ids from input.
    pub fn get(&self, id: K) -> Option<&V> {
        self.rows.get(id.index())
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All ids, ascending.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.rows.len()).map(K::new)
    }

    /// Ids with their rows, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.rows.iter().enumerate().map(|(i, row)| (K::new(i), row))
    }

    /// Ids with mutable rows, ascending.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (K, &mut V)> + ExactSizeIterator {
        self.rows.iter_mut().enumerate().map(|(i, row)| (K::new(i), row))
    }

    /// The rows alone, in order of their ids.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.rows.iter()
    }

    /// The rows as a slice, in order of their ids.
    pub fn as_slice(&self) -> &[V] {
        &self.rows
    }
}

impl<K: Id, V> Default for Table<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> From<Vec<V>> for Table<K, V> {
    fn from(rows: Vec<V>) -> Self {
        Self { rows, key: PhantomData }
    }
}

impl<K: Id, V> FromIterator<V> for Table<K, V> {
    fn from_iter<I: IntoIterator<Item = V>>(rows: I) -> Self {
        Self::from(rows.into_iter().collect::<Vec<_>>())
    }
}

impl<K: Id, V> Index<K> for Table<K, V> {
    type Output = V;
    fn index(&self, id: K) -> &V {
        &self.rows[id.index()]
    }
}

impl<K: Id, V> IndexMut<K> for Table<K, V> {
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut self.rows[id.index()]
    }
}

impl<K: Id + fmt::Debug, V: fmt::Debug> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
