//! Persistent tensors in groups that leave and stay together: those of a layer, or the same of several layers.

use super::instance::Instance;
use crate::random::Random;

/// The largest group has two to this power.
const LARGEST: usize = 4;

/// Persistent tensors in the order in which they are first used: neighbours are those of a layer.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    /// Each with the number of ops that use it, which tells weights from optimizer state.
    members: Vec<(u32, usize)>,
}

impl Groups {
    /// Groups of these tensors.
    pub(crate) fn new(inst: &Instance, persistent: &[u32]) -> Self {
        let mut uses = vec![(usize::MAX, 0); inst.values.len()];
        for (stage, op) in inst.ops.iter().enumerate() {
            for &value in &op.reads {
                let (first, count) = &mut uses[value as usize];
                *first = stage.min(*first);
                *count += 1;
            }
        }
        let mut persistent = persistent.to_vec();
        persistent.sort_by_key(|&value| uses[value as usize].0);
        let members = persistent.into_iter().map(|value| (value, uses[value as usize].1)).collect();
        Self { members }
    }

    /// Whether there are none to draw.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A random tensor and some of those that are first used next after it: all of them, or those that as many ops use.
    pub(crate) fn draw(&self, random: &mut Random) -> Vec<u32> {
        let start = random.below(self.members.len());
        let most = 2 << random.below(LARGEST);
        let alike = random.chance(0.5);
        let (_, uses) = self.members[start];
        let group = self.members[start..].iter().filter(|member| !alike || member.1 == uses);
        group.take(most).map(|&(value, _)| value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_of_neighbours_and_sometimes_of_those_that_are_used_alike() {
        // Weights, which are used twice, and the states of their optimizer, which are used once.
        let members: Vec<(u32, usize)> = (0..40).map(|value| (value, 1 + value as usize % 2)).collect();
        let groups = Groups { members };
        let (mut alike, mut random) = (0, Random::new(1));
        for _ in 0..200 {
            let group = groups.draw(&mut random);
            assert!(!group.is_empty() && group.len() <= 1 << LARGEST);
            let steps: Vec<u32> = group.windows(2).map(|two| two[1] - two[0]).collect();
            let same = !steps.is_empty() && steps.iter().all(|&step| step == 2);
            assert!(same || steps.iter().all(|&step| step == 1), "{group:?}");
            alike += u32::from(same);
        }
        assert!((40..160).contains(&alike), "{alike} of 200 are used alike");
    }
}
