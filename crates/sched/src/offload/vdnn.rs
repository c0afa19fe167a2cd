//! `vdnn`: the baseline of Beaumont et al., section 6.1, after vDNN++. An activation x_i is worth offloading if F_i takes long for its
//! size. For every threshold on u_{F_i} ÷ |x_i| it tries the activations above it, and every other one of them; the shortest ordered
//! schedule that fits is kept. The choice of activations ignores the limit.

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::chain::linearize::Linear;
use crate::chain::ordered::OrderedSets;
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Vdnn;

impl Planner for Vdnn {
    fn name(&self) -> &'static str {
        "vdnn"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let Ok(linear) = Linear::of(request) else { return refusal(request, None, 0) };
        let mut sets = OrderedSets::new(request, &linear, budget, observer);
        let none = vec![false; sets.len() + 1];
        sets.try_set(&none);
        if !request.freedom.offload {
            return sets.finish();
        }
        let chain = &linear.chain;
        let mut worth: Vec<(f64, usize)> = (0..chain.layers.len())
            .filter(|&i| !chain.activations[i].is_zero())
            .map(|i| (chain.layers[i].forward.get() as f64 / chain.activations[i].get() as f64, i))
            .collect();
        worth.sort_by(|a, b| b.0.total_cmp(&a.0));
        for count in 1..=worth.len() {
            if worth.get(count).is_some_and(|next| next.0 == worth[count - 1].0) {
                continue;
            }
            let mut above: Vec<usize> = worth[..count].iter().map(|&(_, i)| i).collect();
            above.sort_unstable();
            for step in [1, 2] {
                let mut set = none.clone();
                above.iter().step_by(step).for_each(|&i| set[i] = true);
                sets.try_set(&set);
            }
        }
        sets.finish()
    }
}
