//! Plans and iterations in the formats of other programs' viewers.
//!
//! | function | format | viewers |
//! | --- | --- | --- |
//! | [`trace_events`] | Chrome trace events, JSON | Perfetto, `chrome://tracing` |
//! | [`memory_snapshot`] | memory snapshot of PyTorch, pickle | `memory_viz`, `torch.cuda._memory_viz` |

mod events;
mod snapshot;

pub use events::{Course, trace_events};
pub use snapshot::memory_snapshot;
