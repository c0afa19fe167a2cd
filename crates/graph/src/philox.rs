//! Philox4x32-10, a counter-based random generator (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011): the
//! same counter and key give the same words, in any order, on any number of threads.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four random words for a counter and a key.
#[inline]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
    }
    counter
}

/// The words of [`philox`] for counters that count up from `first`, one for each lane; `rest` is the rest of all counters.
#[inline(always)]
pub(crate) fn philox_lanes<const LANES: usize>(
    first: u32,
    rest: [u32; 3],
    mut key: [u32; 2],
) -> [[u32; LANES]; 4] {
    let [mut a, mut b, mut c, mut d] = [[0; LANES], [rest[0]; LANES], [rest[1]; LANES], [rest[2]; LANES]];
    for (lane, a) in (0..).zip(&mut a) {
        *a = first.wrapping_add(lane);
    }
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        for lane in 0..LANES {
            let first = u64::from(MULTIPLIERS[0]) * u64::from(a[lane]);
            let second = u64::from(MULTIPLIERS[1]) * u64::from(c[lane]);
            a[lane] = (second >> 32) as u32 ^ b[lane] ^ key[0];
            b[lane] = second as u32;
            c[lane] = (first >> 32) as u32 ^ d[lane] ^ key[1];
            d[lane] = first as u32;
        }
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::{philox, philox_lanes};

    #[test]
    fn lanes_have_the_words_of_their_counters() {
        for first in [0, 7, u32::MAX - 3] {
            let columns = philox_lanes::<16>(first, [5, 6, 7], [8, 9]);
            for lane in 0..16 {
                let words = philox([first.wrapping_add(lane as u32), 5, 6, 7], [8, 9]);
                assert_eq!(columns.map(|column| column[lane]), words);
            }
        }
    }

    /// The known answers that the authors publish with Random123.
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
