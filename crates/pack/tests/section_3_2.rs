//! `best-fit-paper` against a transcription of section 3.2 of Sekiyama et al. (2018) that shares no code with it: every offset is equal.

use elbowroom_ir::Bytes;
use elbowroom_ir::packing::{Block, Problem};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_pack::packer;

/// An offset line: positions from..to at a height.
#[derive(Clone, Copy, Debug)]
struct Line {
    from: u64,
    to: u64,
    height: u64,
}

/// Section 3.2 word by word, quadratic: (size, requested, released) of every block to its offset.
fn transcription(blocks: &[(u64, u64, u64)], at_once: bool) -> Vec<u64> {
    let from = blocks.iter().map(|b| b.1).min().unwrap();
    let to = blocks.iter().map(|b| b.2).max().unwrap();
    let mut lines = vec![Line { from, to, height: 0 }];
    let mut offsets = vec![None; blocks.len()];
    while offsets.contains(&None) {
        // The lowest line, the leftmost of several.
        let at = (0..lines.len()).min_by_key(|&i| (lines[i].height, lines[i].from)).unwrap();
        let line = lines[at];
        // The block with the longest lifetime among those that can be placed; then the larger, then the lower number.
        let fits = |i: &usize| offsets[*i].is_none() && line.from <= blocks[*i].1 && blocks[*i].2 <= line.to;
        let longest = |&i: &usize| (blocks[i].2 - blocks[i].1, blocks[i].0, std::cmp::Reverse(i));
        if let Some(block) = (0..blocks.len()).filter(fits).max_by_key(longest) {
            let (size, requested, released) = blocks[block];
            offsets[block] = Some(line.height);
            let parts = [
                Line { from: line.from, to: requested, height: line.height },
                Line { from: requested, to: released, height: line.height + size },
                Line { from: released, to: line.to, height: line.height },
            ];
            lines.splice(at..=at, parts.into_iter().filter(|part| part.from < part.to));
            if at_once {
                lines.dedup_by(|next, line| {
                    let same = next.height == line.height;
                    if same {
                        line.to = next.to;
                    }
                    same
                });
            }
        } else {
            // Lift it up to the lowest adjacent line; if both adjacent lines are equal, merge it with both.
            let left = at.checked_sub(1).map(|i| lines[i].height);
            let right = lines.get(at + 1).map(|line| line.height);
            let target = left.into_iter().chain(right).min().unwrap();
            let first = if left == Some(target) { at - 1 } else { at };
            let last = if right == Some(target) { at + 1 } else { at };
            let merged = Line { from: lines[first].from, to: lines[last].to, height: target };
            lines.splice(first..=last, [merged]);
        }
    }
    offsets.into_iter().flatten().collect()
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn every_offset_is_that_of_the_text() {
    let mut state = 3;
    let mut differ = [0; 2];
    let cases = 600;
    for case in 0..cases {
        let (count, span, sizes) =
            (2 + next(&mut state) % 40, 4 + next(&mut state) % 60, 1 + next(&mut state) % 20);
        let blocks: Vec<(u64, u64, u64)> = (0..count)
            .map(|_| {
                let requested = next(&mut state) % span;
                let released = requested + 1 + next(&mut state) % (span - requested);
                (1 + next(&mut state) % sizes, requested, released)
            })
            .collect();
        let table = blocks.iter().map(|&(size, from, to)| Block::new(from, to, Bytes(size)));
        let problem = Problem { blocks: table.collect(), capacity: None };
        let offsets = |name: &str| -> Vec<u64> {
            let placement = packer(name).unwrap().pack(&problem, &Budget::default(), &Silent).best.unwrap();
            assert_eq!(elbowroom_pack::validate(&problem, &placement), Ok(()));
            placement.offsets.ids().map(|id| placement.offsets[id].get()).collect()
        };
        let lifted = transcription(&blocks, false);
        let merged = transcription(&blocks, true);
        assert_eq!(offsets("best-fit-paper"), lifted, "case {case}: {blocks:?}");
        assert_eq!(offsets("best-fit-paper-merged"), merged, "case {case}: {blocks:?}");
        differ[0] += usize::from(offsets("best-fit") != lifted);
        differ[1] += usize::from(lifted != merged);
    }
    println!("of {cases} cases compressed time changes {}, merging at once {}", differ[0], differ[1]);
    // The variants are different algorithms, or there would be no reason for three names.
    assert!(differ.iter().all(|&differ| differ > 0), "{differ:?}");
}
