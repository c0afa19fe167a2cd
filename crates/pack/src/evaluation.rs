//! One evaluation of the improver: a search of a component, of a part of it, or of what its items were joined to.

use std::sync::Arc;

use crate::branching_order::BranchingOrders;
use crate::canonical_tree::{Number, Tree, TreeSearch, Verdict, scale_of};
use crate::component::Component;
use crate::composite::{Composites, Joining};
use crate::corner_search::{CornerSearch, Strip};
use crate::instance::{Instance, Span};
use crate::random::Random;
use crate::search_plan::{Kind, SearchPlan};

/// From which mean load on, as a share of the highest, a component is nearly filled: nothing but a search of its corners places it at the peak load.
/// Where much room is left, as in plans of networks, the other searches need fewer evaluations.
const NEARLY_FILLED: f64 = 0.88;

pub(crate) fn nearly_filled(instance: &Instance) -> bool {
    instance.filled() >= NEARLY_FILLED
}

/// The tree of an instance, with numbers as narrow as its sizes permit.
pub(crate) enum AnyTree {
    Narrow(Tree<i32>),
    Wide(Tree<i64>),
}

pub(crate) fn any_tree(instance: &Instance) -> AnyTree {
    let scale = scale_of(instance);
    let total: u64 =
        instance.items.iter().map(|i| (i.size + i.align + i.fixed.unwrap_or(0)) / scale + 1).sum();
    if total < 1 << 29 { AnyTree::Narrow(Tree::new(instance)) } else { AnyTree::Wide(Tree::new(instance)) }
}

/// Whether an instance fits `capacity` bytes; `None` if `nodes` nodes did not suffice to decide.
pub(crate) fn fits(
    instance: &Instance,
    capacity: u64,
    order: &[u32],
    nodes: u64,
    stop: &dyn Fn() -> bool,
) -> Option<bool> {
    let corners = Strip::new(instance)
        .map(|strip| CornerSearch::new(&strip, stop).run(capacity, order, nodes))
        .unwrap_or(Verdict::OutOfNodes);
    let verdict = match any_tree(instance) {
        _ if corners != Verdict::OutOfNodes => corners,
        AnyTree::Narrow(tree) => TreeSearch::new(&tree, stop).run(capacity, order, None, nodes),
        AnyTree::Wide(tree) => TreeSearch::new(&tree, stop).run(capacity, order, None, nodes),
    };
    match verdict {
        Verdict::Fits => Some(true),
        Verdict::DoesNotFit => Some(false),
        Verdict::OutOfNodes => None,
    }
}

/// What an evaluation searches.
pub(crate) enum Scope {
    /// A component.
    Whole(Arc<AnyTree>),
    /// A component, corner by corner.
    Corners(Arc<Strip>),
    /// The composites of a component, corner by corner, with the order of a number.
    Composites { component: Arc<Component>, joining: Joining, search: u64, random: Random },
    /// The items alive in some sections of a component, as an instance.
    Window(Box<Instance>, Span),
}

/// One evaluation, prepared.
pub(crate) struct Evaluation {
    pub(crate) number: u64,
    pub(crate) state: usize,
    pub(crate) scope: Scope,
    pub(crate) ceiling: u64,
    pub(crate) kind: Kind,
    pub(crate) order: Vec<u32>,
    pub(crate) nodes: u64,
    /// The component's plan before this evaluation.
    pub(crate) before: SearchPlan,
}

impl Evaluation {
    /// Whether a verdict says something about the component. That a part fits proves nothing, nor that composites do not.
    pub(crate) fn decided_by(&self, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Fits => self.kind != Kind::Window,
            Verdict::DoesNotFit => !matches!(self.kind, Kind::Composites { .. } | Kind::Joined { .. }),
            Verdict::OutOfNodes => false,
        }
    }

    pub(crate) fn search(&self, stop: &dyn Fn() -> bool) -> Searched {
        let corners = |strip: &Strip, order: &[u32]| {
            let mut search = CornerSearch::new(strip, stop);
            let verdict = search.run(self.ceiling, order, self.nodes);
            let offsets = if verdict == Verdict::Fits { search.offsets() } else { Vec::new() };
            Searched { verdict, offsets, area: search.most_area, nodes: search.nodes }
        };
        match &self.scope {
            Scope::Whole(tree) => self.search_tree(tree, &self.order, stop),
            Scope::Corners(strip) => corners(strip, &self.order),
            Scope::Composites { component, joining, search, random } => {
                let mut random = random.clone();
                let joined = Composites::join(&component.instance, *joining, &mut random, stop);
                let Some(joined) = joined else { return Searched::default() };
                let orders = BranchingOrders::new(&joined.instance);
                let mut searched = match (self.kind, Strip::new(&joined.instance)) {
                    (Kind::Composites { .. }, Some(strip)) => {
                        corners(&strip, &orders.corner_order(*search, &mut random))
                    }
                    _ => {
                        let order = orders.order(*search, &mut random);
                        self.search_tree(&any_tree(&joined.instance), &order, stop)
                    }
                };
                if searched.verdict == Verdict::Fits {
                    searched.offsets = joined.offsets(&searched.offsets);
                }
                searched
            }
            Scope::Window(instance, _) => {
                // Either search proves what the other one does not.
                if self.number.is_multiple_of(2)
                    && nearly_filled(instance)
                    && let Some(strip) = Strip::new(instance)
                {
                    return corners(&strip, &self.order);
                }
                self.search_tree(&any_tree(instance), &self.order, stop)
            }
        }
    }

    /// Searches a tree with a branching order.
    fn search_tree(&self, tree: &AnyTree, order: &[u32], stop: &dyn Fn() -> bool) -> Searched {
        fn with<N: Number>(
            tree: &Tree<N>,
            order: &[u32],
            task: &Evaluation,
            stop: &dyn Fn() -> bool,
        ) -> Searched {
            let mut search = TreeSearch::new(tree, stop);
            let again = match task.kind {
                Kind::Deep { order, again, .. } => again.then_some(order),
                _ => None,
            };
            let verdict = search.run(task.ceiling, order, again, task.nodes);
            let offsets = if verdict == Verdict::Fits { search.offsets() } else { Vec::new() };
            Searched { verdict, offsets, area: search.most_area, nodes: search.nodes }
        }
        match tree {
            AnyTree::Narrow(tree) => with(tree, order, self, stop),
            AnyTree::Wide(tree) => with(tree, order, self, stop),
        }
    }
}

/// The result of one evaluation; by default of one that was stopped.
#[derive(Default)]
pub(crate) struct Searched {
    pub(crate) verdict: Verdict,
    pub(crate) offsets: Vec<u64>,
    pub(crate) area: u64,
    pub(crate) nodes: u64,
}

impl Searched {
    /// Whether the search was stopped: one that ends for want of nodes has visited more than it was allowed.
    pub(crate) fn stopped(&self, task: &Evaluation) -> bool {
        self.verdict == Verdict::OutOfNodes && self.nodes <= task.nodes
    }
}
