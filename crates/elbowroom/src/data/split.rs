//! A part of another data set's samples: what validation holds out, and the rest.

use std::sync::{Arc, Mutex, PoisonError};

use super::order::EpochOrder;
use super::{Batch, DataError, Dataset};

/// Some samples of a data set.
pub struct Subset<'a> {
    dataset: Arc<Mutex<Box<dyn Dataset + 'a>>>,
    /// Their indices.
    samples: Vec<u64>,
    chosen: Vec<u64>,
}

impl<'a> Subset<'a> {
    /// Divides a data set into the samples to train on and a share that is held out, at least one of each. The choice depends on the seed and
    /// the number of samples alone.
    ///
    /// # Errors
    ///
    /// [`DataError::Endless`] for data without an end, [`DataError::Mismatch`] if there is one sample, [`DataError::Samples`] if there are none or more than 2³² − 1.
    pub fn split(dataset: Box<dyn Dataset + 'a>, held_out: f64, seed: u64) -> Result<[Self; 2], DataError> {
        let samples = dataset.samples().ok_or(DataError::Endless)?;
        if samples == 1 {
            let why = "the data has 1 sample, of which none can be held out; give at least two";
            return Err(DataError::Mismatch(why.to_owned()));
        }
        let count = u32::try_from(samples).ok().filter(|&count| count > 1);
        let count = count.ok_or(DataError::Samples { samples })?;
        let held = ((held_out * f64::from(count)).round() as u32).clamp(1, count - 1);
        let mut order = EpochOrder::new(count, seed);
        let shuffled: Vec<u64> = (0..samples).map(|position| order.sample(position).into()).collect();
        let dataset = Arc::new(Mutex::new(dataset));
        let (held, rest) = shuffled.split_at(held as usize);
        Ok([rest, held].map(|part| {
            let mut samples = part.to_vec();
            samples.sort_unstable();
            Self { dataset: Arc::clone(&dataset), samples, chosen: Vec::new() }
        }))
    }
}

impl Dataset for Subset<'_> {
    fn class_names(&self) -> Option<Vec<String>> {
        self.dataset.lock().unwrap_or_else(PoisonError::into_inner).class_names()
    }

    fn samples(&self) -> Option<u64> {
        Some(self.samples.len() as u64)
    }

    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        self.chosen.clear();
        for &index in indices {
            let sample = usize::try_from(index).ok().and_then(|index| self.samples.get(index));
            let samples = self.samples.len() as u64;
            self.chosen.push(*sample.ok_or(DataError::Index { index, samples })?);
        }
        self.dataset.lock().unwrap_or_else(PoisonError::into_inner).fill(&self.chosen, batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many samples.
    struct Count(Option<u64>);

    impl Dataset for Count {
        fn samples(&self) -> Option<u64> {
            self.0
        }
        fn fill(&mut self, _: &[u64], _: &mut Batch) -> Result<(), DataError> {
            Ok(())
        }
    }

    #[test]
    fn every_sample_is_in_one_part() {
        for (count, share, held) in [(10, 0.2, 2), (2, 0.0, 1), (3, 1.0, 2), (101, 0.1, 10)] {
            let [rest, out] = Subset::split(Box::new(Count(Some(count))), share, 5).unwrap();
            assert_eq!(out.samples().unwrap(), held, "{count}");
            let mut all = [rest.samples.clone(), out.samples.clone()].concat();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
            let [again, _] = Subset::split(Box::new(Count(Some(count))), share, 5).unwrap();
            assert_eq!(again.samples, rest.samples);
        }
        assert!(matches!(Subset::split(Box::new(Count(None)), 0.1, 0), Err(DataError::Endless)));
        assert!(Subset::split(Box::new(Count(Some(1))), 0.1, 0).is_err());
    }
}
