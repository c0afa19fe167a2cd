//! The limit on the live memory of a round: below the limit on the arena by what packing loses.

use elbowroom_ir::Bytes;

/// The share of the limit by which the limit on live memory falls at least: a packer often misses it by less, several times in succession.
const STEP: u64 = 160;
/// By twice the excess while nothing has been packed, if that is at most this share of the limit: the next schedule often misses it by as much.
const BARELY: u64 = 64;

/// The limit on live memory of the next round. Whether a schedule can be packed is close to random near the limit, so no limit is ever ruled
/// out: it falls to what can be packed, and then rises half of the way to the whole limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveLimit {
    whole: Bytes,
    /// The alignment of the blocks: an excess of less is of the block on top alone.
    align: Bytes,
    limit: Bytes,
    /// The highest limit whose schedule was packed.
    fits: Option<Bytes>,
    /// The lowest live memory of a schedule that was not packed.
    exceeds: Bytes,
    /// Schedules that could not be packed since the limit last rose.
    failures: u32,
}

impl LiveLimit {
    pub fn from(whole: Bytes, align: Bytes) -> Self {
        Self { whole, align, limit: whole, fits: None, exceeds: whole, failures: 0 }
    }

    pub fn limit(&self) -> Bytes {
        self.limit
    }

    pub fn is_whole(&self) -> bool {
        self.limit == self.whole
    }

    /// A schedule with this peak of live memory exceeded the arena by `excess` bytes when it was packed.
    pub fn exceeds(&mut self, peak: Bytes, excess: Bytes) {
        self.exceeds = self.limit.min(peak);
        if excess < self.align {
            self.limit = self.exceeds.saturating_sub(excess);
            return;
        }
        let fits = self.fits.filter(|&fits| fits < self.exceeds);
        // A schedule that can be packed at all comes first: of what is left of the limit then, later rounds make use.
        let barely = self.fits.is_none() && excess.get() <= self.whole.get() / BARELY;
        let miss = if barely { 2 * excess.get() } else { excess.get() };
        let step = miss.max(self.whole.get() / STEP);
        let step = step.checked_shl(self.failures).unwrap_or(u64::MAX);
        let lower = Bytes(self.exceeds.get().saturating_sub(step));
        self.failures = (self.failures + 1).min(16);
        self.limit = match fits {
            Some(fits) => fits.max(lower),
            None if lower > Bytes::ZERO => lower,
            None => Bytes(self.exceeds.get() / 2),
        };
    }

    /// The schedule of this limit was packed.
    pub fn fits(&mut self) {
        self.fits = Some(self.limit);
        self.rise();
    }

    /// Nothing faster was found within the limit, or it was packed. What a longer search finds above the border may be packed by a longer
    /// attempt, and if not, the short rounds that follow continue from it: they fall by single steps again.
    pub fn rise(&mut self) {
        self.failures = 0;
        self.limit = Bytes(self.limit.get().midpoint(self.whole.get()));
    }

    /// No schedule was found within the limit.
    pub fn too_low(&mut self) {
        self.limit = Bytes(self.limit.get().midpoint(self.exceeds.get().max(self.limit.get())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds whose schedules use all of the limit and are packed if it is at most `border`.
    fn limits(border: u64, rounds: usize) -> Vec<u64> {
        let mut limit = LiveLimit::from(Bytes(10_000), Bytes(1));
        (0..rounds)
            .map(|_| {
                let made = limit.limit();
                match made.get().checked_sub(border).filter(|&excess| excess > 0) {
                    Some(excess) => limit.exceeds(made, Bytes(excess)),
                    None => limit.fits(),
                }
                made.get()
            })
            .collect()
    }

    #[test]
    fn the_limit_approaches_the_border_and_looks_above_it_again() {
        for border in [9_900, 9_000, 6_000, 2_500] {
            let limits = limits(border, 40);
            let fitting = limits.iter().filter(|&&limit| limit <= border);
            assert!(
                fitting.clone().max().is_some_and(|&best| best >= border - 10_000 / STEP - 60),
                "{border}: {limits:?}"
            );
            assert!(fitting.count() >= 10, "{border}: {limits:?}");
            let later = limits.iter().skip(20).any(|&limit| limit > border);
            assert!(later, "a schedule above the border may be packed after all: {border}: {limits:?}");
            assert!(limits.iter().all(|&limit| limit <= 10_000));
        }
    }

    #[test]
    fn failures_between_which_the_limit_rises_do_not_add_up() {
        let mut limit = LiveLimit::from(Bytes(16_000), Bytes(1));
        for _ in 0..8 {
            let failed = limit.limit();
            limit.exceeds(failed, Bytes(300));
            assert_eq!(limit.limit(), failed - Bytes(300));
            limit.rise();
        }
    }

    #[test]
    fn an_excess_of_less_than_the_alignment_lowers_the_limit_by_no_more() {
        let mut limit = LiveLimit::from(Bytes(10_240), Bytes(256));
        limit.exceeds(Bytes(10_240), Bytes(100));
        assert_eq!(limit.limit(), Bytes(10_140));
    }

    #[test]
    fn a_limit_at_which_nothing_is_found_rises_until_something_is() {
        let mut limit = LiveLimit::from(Bytes(10_000), Bytes(1));
        limit.exceeds(Bytes(9_000), Bytes(5_000));
        assert_eq!(limit.limit(), Bytes(4_000));
        let risen: Vec<Bytes> = (0..20).map(|_| (limit.too_low(), limit.limit()).1).collect();
        assert!(risen.windows(2).all(|two| two[0] <= two[1]) && risen[19] > Bytes(8_990), "{risen:?}");
    }
}
