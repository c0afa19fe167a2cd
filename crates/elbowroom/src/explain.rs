//! Why there is no plan, in words and numbers that a user can act on.

use std::collections::BTreeSet;

use elbowroom_ir::Bytes;
use elbowroom_ir::search::Infeasible;
use elbowroom_ir::trace::Trace;
use serde::Serialize;

use crate::pipeline::PlanError;

/// Tensors shown by name; the rest are counted.
const SHOWN: usize = 4;

/// A tensor that must be on the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Needed {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: Bytes,
}

/// Why a limit cannot be met.
#[derive(Clone, Debug, Serialize)]
pub struct Refusal {
    /// Always false: there is no plan.
    pub feasible: bool,
    /// Whether infeasibility is proved; otherwise, no plan was found and nothing is proved.
    pub proved: bool,
    /// The requested limit.
    pub limit_bytes: Bytes,
    /// The op that cannot run, if one is known.
    pub op: Option<String>,
    /// Tensors that this op needs on the device together, largest first.
    pub tensors: Vec<Needed>,
    /// The workspace of this op.
    pub workspace_bytes: Bytes,
    /// Other tensors that may be neither offloaded nor recomputed, and are therefore on the device as well.
    pub held_tensors: usize,
    /// Their size.
    pub held_bytes: Bytes,
    /// Bytes of all these tensors and the workspace together, alignment included.
    pub needed_bytes: Option<Bytes>,
    /// Bytes by which the limit is too small.
    pub missing_bytes: Option<Bytes>,
    /// A limit that works: the smallest for which a plan was found. Smaller ones may work too.
    pub smallest_limit_bytes: Option<Bytes>,
}

impl Refusal {
    /// Explains an error; `None` for an illegal plan, which has nothing to do with the limit.
    pub fn new(trace: &Trace, error: &PlanError, smallest: Option<Bytes>) -> Option<Self> {
        let limit = match error {
            PlanError::Infeasible { limit, .. } | PlanError::GaveUp { limit, .. } => *limit,
            PlanError::Illegal(_) => return None,
        };
        let mut refusal = Self {
            feasible: false,
            proved: matches!(error, PlanError::Infeasible { .. }),
            limit_bytes: limit,
            op: None,
            tensors: Vec::new(),
            workspace_bytes: Bytes::ZERO,
            held_tensors: 0,
            held_bytes: Bytes::ZERO,
            needed_bytes: None,
            missing_bytes: None,
            smallest_limit_bytes: smallest,
        };
        if let PlanError::Infeasible { proof: Infeasible::Op { op, tensors, held, needed, .. }, .. } = error {
            let row = &trace.ops()[*op];
            refusal.op = Some(row.name.clone());
            refusal.workspace_bytes = row.workspace;
            refusal.held_tensors = held.len();
            refusal.held_bytes = held.iter().map(|&tensor| trace.bytes(tensor)).sum();
            refusal.needed_bytes = Some(*needed);
            refusal.missing_bytes = Some(needed.saturating_sub(limit));
            // An op that writes in place reads and writes the same bytes, which count once.
            let mut seen = BTreeSet::new();
            refusal.tensors = tensors
                .iter()
                .filter(|&&tensor| seen.insert(trace.storage(tensor)))
                .map(|&tensor| Needed {
                    name: trace.tensors()[tensor].name.clone(),
                    bytes: trace.bytes(tensor),
                })
                .collect();
            refusal.tensors.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        }
        Some(refusal)
    }

    /// One sentence: the op that cannot run, the bytes that it needs, what else cannot leave the device, the bytes that are missing, and a
    /// limit that works.
    pub fn sentence(&self) -> String {
        let limit = self.limit_bytes;
        let mut sentence = match (&self.op, self.needed_bytes, self.missing_bytes) {
            (Some(op), Some(needed), Some(missing)) => {
                let mut parts: Vec<String> =
                    self.tensors.iter().take(SHOWN).map(|v| format!("{} ({})", v.name, v.bytes)).collect();
                let rest = self.tensors.iter().skip(SHOWN);
                let (count, bytes) = rest.fold((0, Bytes::ZERO), |(n, sum), v| (n + 1, sum + v.bytes));
                if count > 0 {
                    parts.push(format!("{count} more ({bytes})"));
                }
                if !self.workspace_bytes.is_zero() {
                    parts.push(format!("workspace ({})", self.workspace_bytes));
                }
                let held = match self.held_tensors {
                    0 => String::new(),
                    1 => format!(" while another tensor ({}) may not leave it", self.held_bytes),
                    count => {
                        format!(" while {count} other tensors ({}) may not leave it", self.held_bytes)
                    }
                };
                format!(
                    "no plan exists within {limit}: op {op} needs {} on the device together{held}, {needed} in all, so {missing} are missing",
                    parts.join(", ")
                )
            }
            _ => format!("no plan found within {limit} (infeasibility not proved)"),
        };
        if let Some(smallest) = self.smallest_limit_bytes {
            sentence += &format!("; {smallest} ({} bytes) works", smallest.get());
        }
        sentence
    }
}
