//! Pairs of sentences, a source and its translation, as batches of a translator take them: of many lengths, brought together by length.
//!
//! ```text
//! sentences   17→19  4→3  31→28  5→6  18→20  …      drawn by seed and number
//! a pool      sorted: 4→3  5→6 │ 17→19  18→20 │ 31→28 …
//! batches     extents 5→10         20→20        35→30   in a shuffled order, each filled up with padding
//! ```
//!
//! Sentences of `POOL` batches are sorted by length and cut into batches, which come in random order; extents are rounded up to a tenth of
//! the longest sentence, so that the same ones come again. Which sentences are in a batch depends on the seed and the iteration's number alone.

use super::order::mix;

/// Batches whose sentences are sorted together.
const POOL: u64 = 16;
/// Different extents of a source, and of a translation.
const STEPS: usize = 10;

/// One pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentencePair {
    /// Its number among all pairs: says where its words come from.
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
    /// The pairs, a row each.
    pub pairs: Vec<SentencePair>,
}

/// All pairs.
#[derive(Clone, Copy, Debug)]
pub struct Sentences {
    /// Words of the longest sentence, at least one.
    pub longest: usize,
    /// How many pairs there are; without a number they never end.
    pub samples: Option<u64>,
    /// Determines lengths and order.
    pub seed: u64,
}

impl Sentences {
    /// A pair by its place in the endless sequence of epochs.
    fn sentence(&self, place: u64) -> SentencePair {
        let sample = self.samples.map_or(place, |samples| place % samples.max(1));
        let longest = self.longest.max(1) as u64;
        let bits = mix(self.seed ^ 0x1e46, sample);
        // The mean of two: most sentences are of middle length.
        let source = 1 + (bits % longest + (bits >> 16) % longest) / 2;
        // From four fifths of the source to six fifths of it.
        let target = (source * (80 + (bits >> 32) % 41)).div_ceil(100).min(longest);
        SentencePair { sample, source: source as usize, target: target as usize }
    }

    /// Words rounded up to the extent that holds them.
    fn extent(&self, words: usize) -> usize {
        words.next_multiple_of(self.longest.div_ceil(STEPS).max(1)).min(self.longest)
    }

    /// The pairs of an iteration, as many as its batch.
    pub fn batch(&self, iteration: u64, batch: usize) -> SentenceBatch {
        let (pool, place) = (iteration / POOL, iteration % POOL);
        let pairs = POOL * batch as u64;
        let mut sentences: Vec<SentencePair> = (0..pairs).map(|i| self.sentence(pool * pairs + i)).collect();
        sentences.sort_by_key(|pair| (self.extent(pair.source), pair.target, pair.source));
        let mut order: Vec<u64> = (0..POOL).collect();
        order.sort_by_key(|&at| mix(self.seed ^ mix(0x900, pool), at));
        let first = order[place as usize] as usize * batch;
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
    fn extents_differ_from_batch_to_batch_and_come_again() {
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
        let (words, places) = (0..100).map(|at| all.batch(at, 16)).fold((0, 0), |(words, places), batch| {
            let sum: usize = batch.pairs.iter().map(|pair| pair.source + pair.target).sum();
            (words + sum, places + batch.pairs.len() * (batch.source + batch.target))
        });
        assert!(2 * words > places, "{words} words in {places} places");
    }

    #[test]
    fn pairs_repeat_where_there_are_only_so_many_and_one_word_is_enough() {
        let few = Sentences { longest: 1, samples: Some(5), seed: 3 };
        let batch = few.batch(7, 4);
        assert_eq!((batch.source, batch.target), (1, 1));
        assert!(batch.pairs.iter().all(|pair| pair.sample < 5));
    }
}
