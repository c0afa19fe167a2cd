//! `marked`: mirror attributes set by the user (Chen et al., section 5: *enable user to set the mirror attribute in the computation graph*). A
//! mark gives a count to the tensors of a name, or to the results of ops of a name or kind; the counts are those of Algorithm 2
//! ([`mirror`](super::mirror)). As in the paper the pass is unconditional. Without marks everything is kept.

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};
use elbowroom_ir::trace::Trace;

use crate::pattern;
use crate::policy::Policy;
use crate::recompute::answer;
use crate::recompute::mirror::Mirrors;
use crate::recompute::repeats::base;

/// What a mark names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Named {
    /// Tensors.
    Tensor,
    /// The results of ops of this name.
    Op,
    /// The results of ops of this kind.
    Kind,
}

/// One mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What the pattern is compared with.
    pub named: Named,
    /// The name; `*` stands for any number of characters.
    pub pattern: String,
    /// The mirror count: 0 keeps, 1 recomputes once, more recomputes recursively.
    pub count: u32,
}

/// Why a text is no list of marks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the marks is `{text}`; write `tensor|op|kind NAME COUNT`, like `kind batch-norm 1`")]
pub struct MarkError {
    /// The line, from 1.
    pub line: usize,
    /// What it says.
    pub text: String,
}

/// The largest count: every further copy of a tensor costs another run of its op.
const MOST: u32 = 64;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Marked {
    marks: Vec<Mark>,
}

impl Marked {
    /// No marks.
    pub const NONE: Self = Self { marks: Vec::new() };

    /// A planner that follows these marks; of several that name a tensor, the last counts.
    pub const fn new(marks: Vec<Mark>) -> Self {
        Self { marks }
    }

    /// Reads marks: a line for each, `tensor|op|kind NAME COUNT`; empty lines and lines that begin with `#` say nothing.
    ///
    /// ```
    /// # use elbowroom_sched::recompute::marked::Marked;
    /// assert!(Marked::read("# keep what pooling makes\nkind batch-norm 1\nkind *pool* 0\n").is_ok());
    /// assert!(Marked::read("batch-norm").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// The first line that is no mark, or whose count is above 64.
    pub fn read(text: &str) -> Result<Self, MarkError> {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let told = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let read =
            |(line, text): (usize, &str)| mark(text).ok_or_else(|| MarkError { line, text: text.to_owned() });
        told.map(read).collect::<Result<_, _>>().map(Self::new)
    }

    /// The counts of a trace's tensors. Only results of forward ops can be recomputed; marks of others change nothing.
    pub fn mirrors(&self, trace: &Trace) -> Mirrors {
        let mut mirrors = Mirrors::none(trace);
        let (_, backward_start) = base(trace);
        for mark in &self.marks {
            let counts =
                |named, name: &str| mark.named == named && pattern::matches(&mark.pattern, name, None);
            for (_, op) in trace.ops().iter().filter(|(id, _)| id.0 < backward_start) {
                let whole = counts(Named::Op, &op.name) || counts(Named::Kind, &op.kind);
                for &tensor in &op.outputs {
                    if whole || counts(Named::Tensor, &trace.tensors()[tensor].name) {
                        mirrors.mark(tensor, mark.count);
                    }
                }
            }
        }
        mirrors
    }
}

fn mark(text: &str) -> Option<Mark> {
    let (named, rest) = text.split_once(char::is_whitespace)?;
    // A name may contain spaces.
    let (pattern, count) = rest.trim().rsplit_once(char::is_whitespace)?;
    let named = match named {
        "tensor" => Named::Tensor,
        "op" => Named::Op,
        "kind" => Named::Kind,
        _ => return None,
    };
    let count = count.parse().ok().filter(|count| *count <= MOST)?;
    Some(Mark { named, pattern: pattern.trim_end().to_owned(), count })
}

impl Planner for Marked {
    fn name(&self) -> &'static str {
        "marked"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        if !request.freedom.recompute {
            return answer(request, Some(&Policy::prompt(request.trace)), 1);
        }
        answer(request, Some(&self.mirrors(request.trace).policy(request.trace)), 1)
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::planning::Freedom;
    use elbowroom_ir::search::Silent;
    use elbowroom_ir::{Bytes, Nanos};

    use super::*;
    use crate::chain::{Chain, Layer};

    #[test]
    fn a_line_that_is_no_mark_is_named() {
        for (text, line) in [("kind relu", 1), ("\n\nkinds relu 1", 3), ("kind relu -1", 1), ("op a 65", 1)] {
            assert_eq!(Marked::read(text).unwrap_err().line, line, "{text}");
        }
        let marks = Marked::read("  op  a name with spaces   2 ").unwrap().marks;
        assert_eq!(marks, [Mark { named: Named::Op, pattern: "a name with spaces".into(), count: 2 }]);
    }

    #[test]
    fn marked_tensors_are_recomputed_and_the_last_mark_counts() {
        let layer = Layer { forward: Nanos(1), backward: Nanos(2), ..Layer::default() };
        let chain =
            Chain { layers: vec![layer; 4], activations: vec![Bytes(8); 5], gradients: vec![Bytes(8); 5] };
        let chain = chain.to_trace("chain").unwrap();
        let machine = elbowroom_sim::presets::machine("v100").unwrap();
        let request = Request {
            trace: &chain.trace,
            costs: &chain.costs,
            machine: &machine,
            live_limit: Bytes(1 << 20),
            freedom: Freedom::ALL,
            packer: None,
            pins: None,
        };
        let repeats = |marks: &str| {
            let mirrors = Marked::read(marks).unwrap().mirrors(request.trace);
            mirrors.sequence(request.trace).len() - request.trace.ops().len()
        };
        assert_eq!(repeats(""), 0);
        assert_eq!(repeats("tensor x1 1\ntensor x3 1"), 2);
        assert_eq!(repeats("op F* 1\ntensor x2 0\nop F3 0"), 2);
        let outcome = Marked::read("tensor x1 1").unwrap().schedule(&request, &Budget::default(), &Silent);
        assert!(outcome.best.is_some());
    }
}
