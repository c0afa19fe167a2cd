//! Estimated durations for ops without measurements: the roofline model. An op is limited by arithmetic or by memory traffic, whichever
//! takes longer at the machine's rates, plus the time of a launch (S. Williams, A. Waterman and D. Patterson, *Roofline*, CACM 52(4),
//! 2009).

use elbowroom_ir::Nanos;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{CostModel, CostSource};
use elbowroom_ir::trace::Op;

/// max(flops ÷ arithmetic rate of their type, bytes ÷ memory rate) + launch, rounded up to whole nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Roofline<'a> {
    machine: &'a Machine,
}

impl<'a> Roofline<'a> {
    /// The roofline of a machine. A rate of zero counts as one per second.
    pub const fn new(machine: &'a Machine) -> Self {
        Self { machine }
    }
}

impl CostModel for Roofline<'_> {
    fn duration(&self, op: &Op) -> Nanos {
        let arithmetic = time(op.work.flops, self.machine.flops_per_second)
            .saturating_add(time(op.work.half_flops, self.machine.half_rate()));
        let traffic = time(op.work.moved.get(), self.machine.bytes_per_second);
        Nanos(arithmetic.max(traffic).saturating_add(self.machine.launch.get()).min(LONGEST))
    }

    fn source(&self) -> CostSource {
        CostSource::Roofline
    }
}

/// Upper bound of an op's duration (about an hour), so that sums over millions of ops cannot overflow.
const LONGEST: u64 = 1 << 42;

fn time(amount: u64, rate: u64) -> u64 {
    let nanos = (u128::from(amount) * 1_000_000_000).div_ceil(u128::from(rate.max(1)));
    u64::try_from(nanos).unwrap_or(LONGEST).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;
    use elbowroom_ir::Bytes;
    use elbowroom_ir::trace::{Again, Phase, Work};

    fn op() -> Op {
        Op {
            name: String::new(),
            kind: String::new(),
            phase: Phase::Forward,
            again: Again::Pure,
            reads: vec![],
            outputs: vec![],
            mutates: vec![],
            may_reuse: vec![],
            after: vec![],
            workspace: Bytes::ZERO,
            work: Work::default(),
            line: String::new(),
        }
    }

    #[test]
    fn products_of_halves_have_their_own_rate() {
        let machine = presets::machine("a100").unwrap();
        let work = |flops, half_flops| Work { flops, half_flops, moved: Bytes(0) };
        let nanos =
            |machine: &Machine, work| Roofline::new(machine).duration(&Op { work, ..op() }) - machine.launch;
        assert_eq!(nanos(&machine, work(0, 312_000_000)), Nanos(1_000));
        assert_eq!(nanos(&machine, work(19_500_000, 312_000_000)), Nanos(2_000));
        // A machine without such units takes as long as for others.
        let plain = Machine { half_flops_per_second: None, ..machine };
        assert_eq!(nanos(&plain, work(0, 19_500_000)), Nanos(1_000));
    }

    #[test]
    fn the_slower_of_arithmetic_and_traffic_counts() {
        let machine = presets::machine("v100").unwrap();
        let mut op = Op { work: Work { flops: 14_000_000_000, half_flops: 0, moved: Bytes(900) }, ..op() };
        let model = Roofline::new(&machine);
        assert_eq!(model.duration(&op), Nanos(1_000_000) + machine.launch);
        op.work = Work { flops: 14, half_flops: 0, moved: Bytes(1_800_000_000) };
        assert_eq!(model.duration(&op), Nanos(2_000_000) + machine.launch);
        op.work = Work { flops: u64::MAX, half_flops: u64::MAX, moved: Bytes(u64::MAX) };
        assert!(model.duration(&op).get() <= LONGEST);
    }
}
