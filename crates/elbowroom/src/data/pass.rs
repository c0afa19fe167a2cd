//! One pass over a data set, as evaluation and prediction read it: every sample once, in the order of the data set.

use elbowroom_graph::Graph;

use super::{Batch, DataError, Dataset};

/// A data set in batches of one size. Samples that fill up the last batch repeat the first one, and their labels count for nothing.
pub(crate) struct Pass<'a> {
    dataset: Box<dyn Dataset + 'a>,
    samples: u64,
    batch: Batch,
    indices: Vec<u64>,
    /// Number of the last batch that was read.
    last: u64,
}

/// One batch of a pass.
pub(crate) struct Part<'b> {
    /// The inputs.
    pub batch: &'b Batch,
    /// Samples of the data set in it; the others fill it up.
    pub samples: usize,
    /// Labels that count.
    pub labels: u64,
}

impl<'a> Pass<'a> {
    /// A pass over a data set for the inputs of a graph.
    ///
    /// # Errors
    ///
    /// [`DataError::Endless`] if the data set has no end, [`DataError::Samples`] if it has no samples.
    pub fn new(dataset: Box<dyn Dataset + 'a>, graph: &Graph) -> Result<Self, DataError> {
        let samples = dataset.samples().ok_or(DataError::Endless)?;
        if samples == 0 {
            return Err(DataError::Samples { samples });
        }
        Ok(Self { dataset, samples, batch: Batch::new(graph), indices: Vec::new(), last: 0 })
    }

    /// Batches of the pass.
    pub fn batches(&self) -> u64 {
        self.samples.div_ceil(self.batch.samples().max(1) as u64)
    }

    /// Reads the batch of this number, from zero.
    ///
    /// # Errors
    ///
    /// Those of the data set.
    pub fn read(&mut self, number: u64) -> Result<Part<'_>, DataError> {
        let size = self.batch.samples().max(1) as u64;
        let first = number * size;
        self.last = number;
        let index = |position: u64| if position < self.samples { position } else { 0 };
        self.indices.clear();
        self.indices.extend((first..first + size).map(index));
        self.batch.hold();
        self.dataset.fill(&self.indices, &mut self.batch)?;
        self.batch.ignore_labels_after(self.samples_in(number));
        Ok(self.part())
    }

    /// Gives the memory of the batch back, until another is read.
    pub fn give_back(&mut self) {
        self.batch.give_back();
    }

    /// The last batch that was read.
    pub fn part(&self) -> Part<'_> {
        Part { batch: &self.batch, samples: self.samples_in(self.last), labels: self.batch.counted_labels() }
    }

    /// Samples of the data set in the batch of this number.
    fn samples_in(&self, number: u64) -> usize {
        let size = self.batch.samples().max(1) as u64;
        self.samples.saturating_sub(number * size).min(size) as usize
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::zoo::{self, Options};

    use super::*;

    /// The index of a sample is its label.
    struct Numbered(u64);

    impl Dataset for Numbered {
        fn samples(&self) -> Option<u64> {
            Some(self.0)
        }
        fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
            for (label, &index) in batch.classes("labels", &[])?.iter_mut().zip(indices) {
                *label = index as i32;
            }
            Ok(())
        }
    }

    #[test]
    fn every_sample_counts_once() {
        let graph = zoo::build("resnet20", &Options::new(4).image(8)).unwrap();
        let mut pass = Pass::new(Box::new(Numbered(10)), &graph).unwrap();
        assert_eq!(pass.batches(), 3);
        let counts: Vec<_> = (0..3).map(|n| pass.read(n).map(|p| (p.samples, p.labels)).unwrap()).collect();
        assert_eq!(counts, [(4, 4), (4, 4), (2, 2)]);
        let labels = pass.batch.classes("labels", &[]).unwrap().to_vec();
        assert_eq!(labels, [8, 9, -1, -1]);
        assert!(matches!(Pass::new(Box::new(Numbered(0)), &graph), Err(DataError::Samples { samples: 0 })));
    }

    #[test]
    fn a_batch_that_was_given_back_is_read_again() {
        let graph = zoo::build("resnet20", &Options::new(4).image(8)).unwrap();
        let mut pass = Pass::new(Box::new(Numbered(10)), &graph).unwrap();
        let bytes = |pass: &Pass<'_>| pass.batch.slots().map(<[u8]>::to_vec).collect::<Vec<_>>();
        pass.read(1).unwrap();
        let before = bytes(&pass);
        pass.give_back();
        assert!(bytes(&pass).iter().all(Vec::is_empty));
        pass.read(1).unwrap();
        assert_eq!(bytes(&pass), before);
    }
}
