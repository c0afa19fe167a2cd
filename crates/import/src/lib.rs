//! Reads traces that other programs recorded.
