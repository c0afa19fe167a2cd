//! Networks as safetensors files: a network trained on one trace can be trained further on another (section 4.4.2).
//!
//! The metadata of a file has a checksum of its parameters, and a file is taken only if it equals, byte for byte, what is written for the
//! network that it holds: so every byte is covered.

use std::collections::HashMap;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use crate::network::{NAMES, Weights};

/// Why a file holds no network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file is no safetensors file.
    #[error("not a safetensors file: {0}")]
    Format(#[from] safetensors::SafeTensorError),
    /// The checksum is missing, is that of other parameters, or the bytes around the parameters are not those that are written.
    #[error(
        "it is damaged, or was not written by this version of elbowroom: its checksum is missing or is that of other content"
    )]
    Damaged,
    /// A parameter is missing, or is not of 32-bit floats.
    #[error("the file has no 32-bit parameter `{0}`")]
    Missing(&'static str),
    /// The shapes of the parameters do not fit together.
    #[error(
        "the parameters w1 to w8 do not fit together; w4 has {hidden} hidden units (1 to 256 are possible)"
    )]
    Shapes {
        /// Hidden units by the length of `w4`.
        hidden: usize,
    },
    /// A parameter that is not a number.
    #[error("`{0}` holds an infinite value, or one that is no number")]
    NotFinite(&'static str),
}

impl Weights {
    /// The network as the bytes of a safetensors file: `w1` to `w8`, named as in the paper, transposed (vectors are rows).
    pub fn to_safetensors(&self) -> Result<Vec<u8>, WeightsError> {
        let bytes: Vec<Vec<u8>> =
            self.parts().iter().map(|part| part.iter().flat_map(|w| w.to_le_bytes()).collect()).collect();
        let mut views = Vec::with_capacity(NAMES.len());
        for ((name, bytes), shape) in NAMES.into_iter().zip(&bytes).zip(Self::shapes(self.hidden())) {
            views.push((name, TensorView::new(Dtype::F32, shape.to_vec(), bytes)?));
        }
        let metadata = HashMap::from([("checksum".to_owned(), format!("{:016x}", checksum(&bytes)))]);
        Ok(serialize(views, Some(metadata))?)
    }

    /// The network of a file that [`to_safetensors`](Self::to_safetensors) wrote. It means the same only with the number of rounds that it was
    /// trained with.
    ///
    /// # Errors
    ///
    /// A [`WeightsError`]; [`WeightsError::Damaged`] if any byte is not the one that was written.
    pub fn from_safetensors(bytes: &[u8]) -> Result<Self, WeightsError> {
        let file = SafeTensors::deserialize(bytes)?;
        let mut parts: [Vec<f32>; 8] = Default::default();
        let mut shapes = Vec::with_capacity(NAMES.len());
        for (part, name) in parts.iter_mut().zip(NAMES) {
            let view = file.tensor(name).ok().filter(|view| view.dtype() == Dtype::F32);
            let view = view.ok_or(WeightsError::Missing(name))?;
            *part = view.data().as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            if !part.iter().all(|w| w.is_finite()) {
                return Err(WeightsError::NotFinite(name));
            }
            shapes.push(view.shape().to_vec());
        }
        let hidden = parts[3].len();
        let fit = shapes.iter().zip(Self::shapes(hidden)).all(|(found, wanted)| *found == wanted);
        let weights = Self::of(hidden, parts).filter(|_| fit && (1..=256).contains(&hidden));
        let weights = weights.ok_or(WeightsError::Shapes { hidden })?;
        if weights.to_safetensors()? != bytes { Err(WeightsError::Damaged) } else { Ok(weights) }
    }
}

/// FNV-1a with 64 bits over the bytes of all parameters.
fn checksum(parts: &[Vec<u8>]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    parts.iter().flatten().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_sched::random::Random;

    #[test]
    fn a_network_survives_its_file_and_broken_files_are_refused() {
        let weights = Weights::random(12, &mut Random::new(5));
        let bytes = weights.to_safetensors().unwrap();
        assert_eq!(Weights::from_safetensors(&bytes).unwrap(), weights);
        assert!(matches!(Weights::from_safetensors(&bytes[..bytes.len() - 1]), Err(WeightsError::Format(_))));
        // Every bit of the head and some of the values, which the checksum covers.
        let sampled = (0..8 * bytes.len()).filter(|bit| bit / 8 < 600 || bit % 97 == 0);
        for bit in sampled {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Weights::from_safetensors(&damaged).is_err(), "bit {bit} of {}", 8 * bytes.len());
        }
        let one = serialize([("w1", TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap())], None).unwrap();
        assert!(matches!(Weights::from_safetensors(&one), Err(WeightsError::Missing("w2"))));
        let mut broken = weights.clone();
        broken.parts[2][0] = f32::NAN;
        let bytes = broken.to_safetensors().unwrap();
        assert!(matches!(Weights::from_safetensors(&bytes), Err(WeightsError::NotFinite("w3"))));
        let small = TensorView::new(Dtype::F32, vec![1, 1], &[0; 4]).unwrap();
        let all = serialize(NAMES.map(|name| (name, small.clone())), None).unwrap();
        assert!(matches!(Weights::from_safetensors(&all), Err(WeightsError::Shapes { hidden: 1 })));
    }
}
