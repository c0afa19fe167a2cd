//! (crate root, being written)
