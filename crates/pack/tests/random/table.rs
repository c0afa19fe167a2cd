//! Random tables of buffers with gaps, windows, alignments, fixed offsets and hints.

use crate::random::Random;

/// A table of up to `len` buffers. Bits of `kinds` switch windows, alignments, fixed offsets, inclusive ends and hints on.
pub fn table(random: &mut Random, len: u64, kinds: u64) -> String {
    let inclusive = u64::from(kinds & 8 != 0);
    let mut text =
        format!("id,lower,{},size,alignment,offset,hint,gaps\n", ["upper", "end"][inclusive as usize]);
    for id in 0..1 + random.below(len) {
        let (lower, size) = (random.below(5), random.below(6));
        let upper = lower + 1 + random.below(8);
        let align = if kinds & 2 != 0 { [1, 1, 2, 3][random.below(4) as usize] } else { 1 };
        let fixed = if kinds & 4 != 0 && random.below(4) == 0 {
            (align * random.below(4)).to_string()
        } else {
            String::new()
        };
        let hint = if kinds & 16 != 0 { random.below(9) as i64 - 1 } else { -1 };
        let mut gaps = Vec::new();
        let mut at = lower;
        while at < upper && random.below(3) > 0 {
            let from = at + random.below(2);
            let to = from + 1 + random.below(3);
            if to > upper || (from == lower && to == upper && (kinds & 1 == 0 || size == 0)) {
                break;
            }
            let window = if kinds & 1 != 0 && random.below(4) > 0 {
                let first = random.below(size + 1);
                format!("@{first}:{}", first + random.below(size + 1 - first))
            } else {
                String::new()
            };
            gaps.push(format!("{from}-{}{window}", to - inclusive));
            at = to;
        }
        text += &format!(
            "b{id},{lower},{},{size},{align},{fixed},{hint},{}\n",
            upper - inclusive,
            gaps.join(" ")
        );
    }
    text
}
