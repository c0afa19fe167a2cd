//! Compares the states of two trainings bit by bit, without a second copy of either state.

use std::fmt;

use crate::error::EngineError;
use crate::persistent::PIECE;
use crate::session::Session;

/// A 128-bit digest of a tensor. Two tensors with the same digest are equal unless somebody constructed a collision. For comparing with a
/// training whose memory has been freed. Two independent 64-bit states, each updated by multiplication and rotation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u64; 2]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Digest {
    const START: Self = Self([0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7344]);

    /// Adds bytes. Any split into pieces gives the same digest if all pieces but the last are multiples of eight bytes.
    fn update(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let word = u64::from_le_bytes(word);
            let [a, b] = &mut self.0;
            *a = (*a ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
            *b = (*b).wrapping_add(word).wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(37);
        }
    }

    /// The digest of a whole tensor.
    pub fn of(bytes: &[u8]) -> Self {
        let mut digest = Self::START;
        digest.update(bytes);
        digest
    }
}

/// Where two trainings differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the persistent tensor.
    pub name: String,
    /// The first byte that differs; the smaller size if one tensor is a prefix of the other.
    pub byte: usize,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} differs from byte {} on", self.name, self.byte)
    }
}

impl Session {
    /// The digests of all persistent tensors, in order.
    ///
    /// # Errors
    /// The session is unusable, or its host tier failed.
    pub fn digests(&self) -> Result<Vec<Digest>, EngineError> {
        let mut buffer = vec![0; PIECE];
        let count = self.persistent().len();
        (0..count).map(|index| self.digest(index, &mut buffer)).collect()
    }

    fn digest(&self, index: usize, buffer: &mut [u8]) -> Result<Digest, EngineError> {
        let (bytes, mut digest) = (self.persistent_bytes(index), Digest::START);
        for skip in (0..bytes).step_by(buffer.len()) {
            let piece = &mut buffer[..PIECE.min(bytes - skip)];
            self.read_piece(index, skip, piece)?;
            digest.update(piece);
        }
        Ok(digest)
    }
}

/// The first difference between the persistent tensors of two sessions of one graph, or `None` if they are bit-exact.
///
/// # Errors
/// A session is unusable, or its host tier failed.
pub fn first_difference(a: &Session, b: &Session) -> Result<Option<Difference>, EngineError> {
    let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
    for (index, parameter) in a.persistent().iter().enumerate() {
        let bytes = a.persistent_bytes(index);
        for skip in (0..bytes).step_by(PIECE) {
            let count = PIECE.min(bytes - skip);
            let (left, right) = (&mut left[..count], &mut right[..count]);
            a.read_piece(index, skip, left)?;
            b.read_piece(index, skip, right)?;
            if let Some(at) = left.iter().zip(right.iter()).position(|(l, r)| l != r) {
                return Ok(Some(Difference { name: parameter.name.clone(), byte: skip + at }));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_see_every_bit_and_every_place() {
        let bytes: Vec<u8> = (0..1000).map(|i| (i * 7 % 256) as u8).collect();
        let digest = Digest::of(&bytes);
        let mut pieces = Digest::START;
        pieces.update(&bytes[..512]);
        pieces.update(&bytes[512..]);
        assert_eq!(pieces, digest);
        for bit in 0..8000 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Digest::of(&other), digest, "bit {bit}");
        }
        let mut swapped = bytes.clone();
        swapped.swap(3, 700);
        assert_ne!(Digest::of(&swapped), digest);
    }
}
