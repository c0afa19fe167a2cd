//! Pairs of sentences (a source and its translation) of many lengths, in batches of similar length, for networks that translate.
//!
//! ```text
//! sentences   17→19  4→3  31→28  5→6  18→20  …      drawn by seed and number
//! a pool      sorted: 4→3  5→6 │ 17→19  18→20 │ 31→28 …
//! batches     extents 5→10         20→20        35→30   in a shuffled order, each filled up with padding
//! ```
//!
//! The sentences of `POOL` batches are sorted by length and cut into batches, which follow in random order. Extents are rounded up to a tenth
//! of the longest sentence, so that the same extents recur. The sentences of a batch depend on the seed and the iteration's number alone.

use super::order::mix;

/// Batches whose sentences are sorted together.
pub(crate) const POOL: u64 = 16;
/// Number of different extents of a source, and of a translation.
const STEPS: usize = 10;

/// A source and its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentencePair {
    /// Index of the sample that its words are taken from.
    pub sample: u64,
    /// Words of the source.
    pub source: usize,
    /// Words of the translation.
    pub target: usize,
}

/// The pairs of one iteration, with the extents that hold the longest of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentenceBatch {
    /// Words of the sources, padding in front of them included.
    pub source: usize,
    /// Words of the translations, padding behind them included.
    pub target: usize,
    /// The pairs, one for each row of the batch.
    pub pairs: Vec<SentencePair>,
}

/// All pairs of a data set.
#[derive(Clone, Copy, Debug)]
pub struct Sentences {
    /// Words of the longest sentence, at least one.
    pub longest: usize,
    /// Number of pairs; `None` for an endless sequence.
    pub samples: Option<u64>,
    /// Determines lengths and order.
    pub seed: u64,
}

impl Sentences {
    /// The pair at a position of the endless sequence of epochs.
    fn sentence(&self, position: u64) -> SentencePair {
        let sample = self.samples.map_or(position, |samples| position % samples.max(1));
        let longest = self.longest.max(1) as u64;
        let bits = mix(self.seed ^ 0x1e46, sample);
        // The mean of two random numbers: most sentences are of medium length.
        let source = 1 + (bits % longest + (bits >> 16) % longest) / 2;
        // Between 4/5 and 6/5 of the length of the source.
        let target = (source * (80 + (bits >> 32) % 41)).div_ceil(100).min(longest);
        SentencePair { sample, source: source as usize, target: target as usize }
    }

    /// A number of words, rounded up to the next extent.
    fn extent(&self, words: usize) -> usize {
        words.next_multiple_of(self.longest.div_ceil(STEPS).max(1)).min(self.longest)
    }

    /// The `batch` pairs of an iteration.
    pub fn batch(&self, iteration: u64, batch: usize) -> SentenceBatch {
        let (pool, index) = (iteration / POOL, iteration % POOL);
        let pairs = POOL * batch as u64;
        let mut sentences: Vec<SentencePair> = (0..pairs).map(|i| self.sentence(pool * pairs + i)).collect();
        sentences.sort_by_key(|pair| (self.extent(pair.source), pair.target, pair.source));
        let mut order: Vec<u64> = (0..POOL).collect();
        order.sort_by_key(|&at| mix(self.seed ^ mix(0x900, pool), at));
        let first = order[index as usize] as usize * batch;
        let sentences = sentences[first..first + batch].to_vec();
        let most = |words: fn(&SentencePair) -> usize| sentences.iter().map(words).max().unwrap_or(1);
        let (source, target) = (most(|pair| pair.source), most(|pair| pair.target));
        SentenceBatch { source: self.extent(source), target: self.extent(target), pairs: sentences }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pair_of_a_pool_comes_once_and_fits_its_batch() {
        let all = Sentences { longest: 50, samples: None, seed: 3 };
        let mut seen = BTreeSet::new();
        for iteration in 0..2 * POOL {
            let batch = all.batch(iteration, 8);
            assert_eq!(batch, all.batch(iteration, 8));
            assert!(batch.source <= 50 && batch.target <= 50);
            for pair in &batch.pairs {
                assert!(
                    (1..=batch.source).contains(&pair.source) && (1..=batch.target).contains(&pair.target)
                );
                assert!(seen.insert(pair.sample));
            }
        }
        assert_eq!(seen, (0..2 * POOL * 8).collect());
    }

    #[test]
    fn extents_differ_from_batch_to_batch_and_recur() {
        let all = Sentences { longest: 50, samples: None, seed: 3 };
        let extents = |range: std::ops::Range<u64>| -> Vec<(usize, usize)> {
            range
                .map(|iteration| all.batch(iteration, 16))
                .map(|batch| (batch.source, batch.target))
                .collect()
        };
        let first = extents(0..500);
        let changes = first.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes > 400, "{changes} changes");
        let known: BTreeSet<_> = first.into_iter().collect();
        assert!((10..=64).contains(&known.len()), "{} forms", known.len());
        let new = extents(500..1000).into_iter().filter(|form| !known.contains(form)).count();
        assert!(new < 10, "{new} late forms");
        // Padding costs less than the words themselves.
        let (words, tokens) = (0..100).map(|at| all.batch(at, 16)).fold((0, 0), |(words, tokens), batch| {
            let sum: usize = batch.pairs.iter().map(|pair| pair.source + pair.target).sum();
            (words + sum, tokens + batch.pairs.len() * (batch.source + batch.target))
        });
        assert!(2 * words > tokens, "{words} words in {tokens} tokens");
    }

    #[test]
    fn pairs_of_a_small_data_set_repeat_and_may_be_single_words() {
        let few = Sentences { longest: 1, samples: Some(5), seed: 3 };
        let batch = few.batch(7, 4);
        assert_eq!((batch.source, batch.target), (1, 1));
        assert!(batch.pairs.iter().all(|pair| pair.sample < 5));
    }
}
