//! The list of every table and figure.

use crate::{Bench, Error, Row, Sheet, beaumont, chen, sekiyama, shicheng, zhang};

/// One of the five papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Paper {
    /// Beaumont et al. (2020): *Optimal GPU-CPU offloading strategies for deep neural network training*.
    Beaumont,
    /// Chen et al. (2016): *Training deep nets with sublinear memory cost*.
    Chen,
    /// Sekiyama et al. (2018): *Profile-guided memory optimization for deep neural networks*.
    Sekiyama,
    /// Shicheng (2020): *GPU memory management for neural networks using deep Q-network*.
    Shicheng,
    /// Zhang et al. (2019): *Efficient memory management for GPU-based deep learning systems*.
    Zhang,
}

/// How an item comes about.
enum Source {
    /// By this function.
    Computed(fn(&Bench<'_>) -> Result<Sheet, Error>),
    /// It has no figures; why.
    Drawing(&'static str),
}

/// A table or figure, or a statement of the text with figures.
pub struct Item {
    /// Its name, like `zhang-table-2`.
    pub name: &'static str,
    /// The paper.
    pub paper: Paper,
    /// Where it stands.
    pub place: &'static str,
    /// What it shows.
    pub title: &'static str,
    source: Source,
}

impl Item {
    pub(crate) fn sheet(&self, bench: &Bench<'_>) -> Result<Sheet, Error> {
        match self.source {
            Source::Computed(compute) => compute(bench),
            Source::Drawing(reason) => {
                Ok(Sheet::of(vec![Row::new("drawing", "", None, None).because(reason)]))
            }
        }
    }
}

/// The item of a name.
pub fn item(name: &str) -> Option<&'static Item> {
    ITEMS.iter().find(|item| item.name == name)
}

const fn computed(
    name: &'static str,
    paper: Paper,
    place: &'static str,
    title: &'static str,
    compute: fn(&Bench<'_>) -> Result<Sheet, Error>,
) -> Item {
    Item { name, paper, place, title, source: Source::Computed(compute) }
}

const fn drawing(name: &'static str, paper: Paper, title: &'static str, reason: &'static str) -> Item {
    Item { name, paper, place: "a drawing", title, source: Source::Drawing(reason) }
}

use Paper::{Beaumont, Chen, Sekiyama, Shicheng, Zhang};

/// Every table and figure of the five papers, paper by paper in their order.
pub static ITEMS: &[Item] = &[
    drawing(
        "sekiyama-fig1",
        Sekiyama,
        "running example of best-fit",
        "a drawing without sizes; the heuristic is the packer best-fit-paper, which a test compares with the text offset by offset",
    ),
    computed(
        "sekiyama-fig2",
        Sekiyama,
        "section 5.2 and 5.3",
        "memory of training and inference",
        sekiyama::figure_2,
    ),
    computed("sekiyama-fig3", Sekiyama, "section 5.2 and 5.3", "time per mini-batch", sekiyama::figure_3),
    computed(
        "sekiyama-fig4",
        Sekiyama,
        "section 5.2 and 5.3",
        "running time of best-fit",
        sekiyama::figure_4,
    ),
    computed(
        "sekiyama-heuristic",
        Sekiyama,
        "section 5.2, Heuristic",
        "best-fit against optima",
        sekiyama::heuristic,
    ),
    computed("chen-fig1", Chen, "section 3", "memory of a two-layer network", chen::figure_1),
    drawing(
        "chen-fig2",
        Chen,
        "memory allocation on a graph",
        "a drawing of the algorithm without sizes; it is the planner sharing with the packer sharing, whose result on Figure 1 is in chen-fig1",
    ),
    drawing(
        "chen-fig3",
        Chen,
        "mirrored gradient graph",
        "a drawing of an example of Algorithm 2 without sizes; the algorithm is Mirrors in crates/sched/src/recompute/mirror.rs, whose tests count how often each op runs",
    ),
    drawing(
        "chen-fig4",
        Chen,
        "recursive view of segments",
        "a drawing without figures; the recursion is the planner recursive, whose memory is in chen-equation-3",
    ),
    computed(
        "chen-equation-1",
        Chen,
        "section 4.3, equation 1",
        "memory of n equal layers in segments",
        chen::equation_1,
    ),
    computed(
        "chen-equation-3",
        Chen,
        "section 4.4, equation 3",
        "memory of n equal layers by recursion",
        chen::equation_3,
    ),
    computed("chen-fig5", Chen, "section 5.2", "memory of residual networks by depth", chen::figure_5),
    computed("chen-fig6", Chen, "section 5.3", "memory of LSTMs by length", chen::figure_6),
    computed("chen-fig7", Chen, "section 5.4", "cost in time", chen::figure_7),
    drawing("zhang-fig1", Zhang, "forward and backward propagation", "a drawing without figures"),
    computed("zhang-fig2", Zhang, "section II-D", "memory load of VGG-16", zhang::figure_2),
    drawing(
        "zhang-fig3",
        Zhang,
        "lifetimes and sizes of variables",
        "a drawing without figures; elbowroom plan --svg and elbowroom report draw the same of any plan",
    ),
    drawing(
        "zhang-fig4",
        Zhang,
        "first fit and best fit",
        "a drawing without sizes; the two are the packers smartpool-first and smartpool-best, compared in zhang-table-1",
    ),
    drawing(
        "zhang-fig5",
        Zhang,
        "priority scores",
        "a drawing of definitions; the scores are the planners doa, aoa, wdoa and swdoa, compared in zhang-fig9",
    ),
    drawing(
        "zhang-fig6",
        Zhang,
        "steps of SWDOA",
        "a drawing of a procedure without figures; it is the planner swdoa, compared in zhang-fig9",
    ),
    drawing(
        "zhang-fig7",
        Zhang,
        "example of scheduling",
        "sizes and times of the three variables are not printed, only the peak of 120 MB and the limit of 60 MB; the schedule is that of the planners of zhang-fig9",
    ),
    computed(
        "zhang-table-1",
        Zhang,
        "section VI-A, Table I",
        "competitive ratio and time of SmartPool",
        zhang::table_1,
    ),
    computed("zhang-fig8", Zhang, "section VI-B.1", "smallest memory load of VGG-16", zhang::figure_8),
    computed(
        "zhang-fig9",
        Zhang,
        "section VI-B.2",
        "overhead of scores and Bayesian optimization",
        zhang::figure_9,
    ),
    computed(
        "zhang-table-2",
        Zhang,
        "section VI-B.4, Table II",
        "largest reduction without overhead",
        zhang::table_2,
    ),
    computed("zhang-fig10", Zhang, "section VI-C.1", "footprint by batch size", zhang::figure_10),
    computed(
        "zhang-fig11",
        Zhang,
        "section VI-C.2",
        "footprint and overhead beside other methods",
        zhang::figure_11,
    ),
    drawing("shicheng-fig1", Shicheng, "variable swapping in time", "a drawing without figures"),
    drawing("shicheng-fig2", Shicheng, "recomputation in time", "a drawing without figures"),
    drawing(
        "shicheng-fig3",
        Shicheng,
        "agent and environment",
        "a drawing of the program's parts, without figures; they are the modules of crates/dqn/src",
    ),
    drawing(
        "shicheng-fig4",
        Shicheng,
        "transitions of the agent",
        "a drawing; the text gives one example, a copy of 1.5 s over ops of 1 s with 0.5 s of overhead, without the sizes that a plan would need",
    ),
    computed(
        "shicheng-differences",
        Shicheng,
        "sections 4.3 to 4.10, Algorithm 1",
        "training as the paper's text has it, and each difference of ours",
        shicheng::differences,
    ),
    computed(
        "shicheng-transfer",
        Shicheng,
        "section 4.4.2",
        "a network trained on other traces, as a start of auto",
        shicheng::transfer,
    ),
    computed("shicheng-fig5", Shicheng, "section 5.1", "overhead by reduction of memory", shicheng::figure_5),
    drawing(
        "beaumont-fig1",
        Beaumont,
        "dependencies of a chain",
        "a drawing of the model; it is Chain in crates/sched/src/chain/mod.rs",
    ),
    drawing(
        "beaumont-fig2",
        Beaumont,
        "instance of the reduction from 3-partition",
        "a step of a proof of NP-hardness with symbols in place of sizes; nothing is measured on it",
    ),
    drawing(
        "beaumont-fig3",
        Beaumont,
        "instance of the reduction from 2-partition",
        "a step of a proof of NP-hardness with symbols in place of sizes; nothing is measured on it",
    ),
    drawing(
        "beaumont-fig4",
        Beaumont,
        "notation of the forward phase",
        "a drawing of symbols, which are those of crates/sched/src/chain/relaxation.rs",
    ),
    computed(
        "beaumont-fig5",
        Beaumont,
        "section 6.2",
        "iteration time over lower bound, selection",
        beaumont::figure_5,
    ),
    computed(
        "beaumont-partial",
        Beaumont,
        "section 4, theorem 2",
        "partial offload against whole activations",
        beaumont::partial,
    ),
    computed(
        "beaumont-optimum",
        Beaumont,
        "section 5, Algorithm 1",
        "planners and bounds against exact optima of small chains",
        beaumont::optima,
    ),
    computed("beaumont-fig6", Beaumont, "section 6.3", "the same, ResNet 224", |b| beaumont::ratios(b, 6)),
    computed("beaumont-fig7", Beaumont, "section 6.3", "the same, ResNet 500", |b| beaumont::ratios(b, 7)),
    computed("beaumont-fig8", Beaumont, "section 6.3", "the same, ResNet 1000", |b| beaumont::ratios(b, 8)),
    computed("beaumont-fig9", Beaumont, "section 6.3", "the same, DenseNet 224", |b| beaumont::ratios(b, 9)),
    computed("beaumont-fig10", Beaumont, "section 6.3", "the same, DenseNet 500", |b| {
        beaumont::ratios(b, 10)
    }),
    computed("beaumont-fig11", Beaumont, "section 6.3", "the same, DenseNet 1000", |b| {
        beaumont::ratios(b, 11)
    }),
    computed("beaumont-fig12", Beaumont, "section 6.3", "the same, Inception", |b| beaumont::ratios(b, 12)),
    computed("beaumont-fig13", Beaumont, "section 6.4", "throughput, ResNet 224", |b| {
        beaumont::throughput(b, 13)
    }),
    computed("beaumont-fig14", Beaumont, "section 6.4", "throughput, ResNet 500", |b| {
        beaumont::throughput(b, 14)
    }),
    computed("beaumont-fig15", Beaumont, "section 6.4", "throughput, ResNet 1000", |b| {
        beaumont::throughput(b, 15)
    }),
    computed("beaumont-fig16", Beaumont, "section 6.4", "throughput, DenseNet 224", |b| {
        beaumont::throughput(b, 16)
    }),
    computed("beaumont-fig17", Beaumont, "section 6.4", "throughput, DenseNet 500", |b| {
        beaumont::throughput(b, 17)
    }),
    computed("beaumont-fig18", Beaumont, "section 6.4", "throughput, DenseNet 1000", |b| {
        beaumont::throughput(b, 18)
    }),
    computed("beaumont-fig19", Beaumont, "section 6.4", "throughput, Inception", |b| {
        beaumont::throughput(b, 19)
    }),
];
