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
    /// The host memory that a plan within the limit takes, if there was too little of it.
    pub host_needed_bytes: Option<Bytes>,
    /// The host memory that there was.
    pub host_available_bytes: Option<Bytes>,
    /// The folder for host copies, if its free space was too small.
    pub host_folder: Option<String>,
}

/// Too little host memory for any plan within a limit that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostShortage {
    /// Bytes that a plan within the limit takes.
    pub needed: Bytes,
    /// Bytes that there were.
    pub available: Bytes,
    /// The folder with too little free space; `None` if the machine or the user limits host memory.
    pub folder: Option<String>,
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
            host_needed_bytes: None,
            host_available_bytes: None,
            host_folder: None,
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

    /// The same refusal where more host memory would have sufficed.
    #[must_use]
    pub fn short_of_host_memory(self, shortage: Option<HostShortage>) -> Self {
        let Some(HostShortage { needed, available, folder }) = shortage else { return self };
        Self {
            host_needed_bytes: Some(needed),
            host_available_bytes: Some(available),
            host_folder: folder,
            ..self
        }
    }

    /// What a shortage of host memory is, and what to do.
    fn host_sentence(&self) -> Option<String> {
        let (needed, available) = self.host_needed_bytes.zip(self.host_available_bytes)?;
        Some(match &self.host_folder {
            Some(folder) => format!(
                "; a plan within it needs {needed} in the folder {folder}, which has {available} left for host copies: free space there, or name another folder with --host"
            ),
            None if available.is_zero() => format!(
                "; a plan within it needs {needed} for host copies, and there is no folder on a disk to hold them: name one with --host"
            ),
            None => format!(
                "; a plan within it needs {needed} of host memory, which is limited to {available}: a larger --host-memory works"
            ),
        })
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
                let sum = self.tensors.iter().map(|v| v.bytes).sum::<Bytes>()
                    + self.workspace_bytes
                    + self.held_bytes;
                let aligned = if needed > sum { " with alignment" } else { "" };
                format!(
                    "no plan exists within {limit}: op {op} needs {} on the device together{held}, {needed} in all{aligned}, so {missing} are missing",
                    parts.join(", ")
                )
            }
            _ => format!("no plan found within {limit} (infeasibility not proved)"),
        };
        sentence += &self.host_sentence().unwrap_or_default();
        match self.smallest_limit_bytes {
            // The search for it has a planner of its own.
            Some(smallest) if smallest <= limit => {
                sentence += &format!("; another planner finds one within {smallest}: try --planner auto");
            }
            Some(smallest) if smallest < Bytes(1024) => sentence += &format!("; {smallest} works"),
            Some(smallest) => sentence += &format!("; {smallest} ({} bytes) works", smallest.get()),
            None => {}
        }
        sentence
    }
}
