//! Clocks, and ratios of times.

use super::peer::median;

/// What times are.
#[derive(Clone, Copy)]
pub enum Clock {
    /// Those of the processor, on one thread: other work on the machine does not count.
    Processor,
    /// Those on the wall.
    Wall,
}

impl Clock {
    /// The clock for a number of threads.
    pub fn of(threads: usize) -> Self {
        if threads == 1 { Self::Processor } else { Self::Wall }
    }

    /// Milliseconds since some moment.
    pub fn now(self) -> f64 {
        let time = rustix::time::clock_gettime(match self {
            Self::Processor => rustix::time::ClockId::ProcessCPUTime,
            Self::Wall => rustix::time::ClockId::Monotonic,
        });
        time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
    }
}

/// The median ratio of neighbours in time, with its 95 % interval: the order statistics that a binomial count of smaller ones allows.
pub struct Ratio {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Ratio {
    pub fn of(ours: &[f64], theirs: &[f64]) -> Self {
        let mut ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
        ratios.sort_by(f64::total_cmp);
        let count = ratios.len() as f64;
        let reach = 0.98 * count.sqrt();
        let low = (count / 2.0 - reach).floor().max(0.0) as usize;
        let high = ((count / 2.0 + reach).ceil() as usize).min(ratios.len() - 1);
        Self { median: median(&ratios), low: ratios[low], high: ratios[high] }
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { median, low, high } = self;
        write!(f, "{median:.3} [{low:.3}, {high:.3}]")
    }
}
