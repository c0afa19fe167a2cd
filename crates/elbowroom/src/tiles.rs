//! Which weights of a training are cut into tiles, decided under the limit.
//!
//! An update needs a weight, its gradient and its optimizer state at once. Where that is more than the limit, or leaves too little for the rest,
//! the weight is cut ([`Graph::tiled`]): the limit decides, and the results stay the same to the bit. Tiling makes another graph, and no later
//! stage has a special case for it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use elbowroom_engine::kernels::tile_grain;
use elbowroom_graph::{BuildError, Graph, Tileable, Tiling};
use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::Freedom;
use elbowroom_ir::units::ParseBytesError;

use crate::algorithms;
use crate::pipeline::{self, Task, Untraceable};
pub use crate::report::TiledWeight;

/// Weights are cut if the limit is below this share of what the iteration needs without tiles: a plan at the last byte of that is slow.
const NEAR: f64 = 1.1;
/// A weight is cut if its update takes more than this part of the limit.
const LARGE: u64 = 4;
/// The update of a tile takes at most this part of the limit, if the weight can be cut that finely: one tile is copied to the device, one is
/// updated and one is copied back at the same time, next to everything else.
const SMALL: u64 = 8;
/// Where the smallest limit is asked for, tiles are not smaller than this for its sake: each costs two copies and some ops.
const LEAST: Bytes = Bytes(1 << 20);

/// Which weights may be cut into tiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TileChoice {
    /// Large ones, if the limit is too small for whole ones.
    #[default]
    Auto,
    /// None.
    Never,
    /// Every weight with more bytes than this, into tiles of at most as many, if it can be cut that finely.
    AtMost(Bytes),
}

/// A text that names no choice of tiles.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("`{text}` is no choice of tiles: write auto, never, or the size of a tile like 16MiB ({source})")]
pub struct ParseTilesError {
    text: String,
    source: ParseBytesError,
}

impl FromStr for TileChoice {
    type Err = ParseTilesError;

    fn from_str(text: &str) -> Result<Self, ParseTilesError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "never" => Ok(Self::Never),
            size => match size.parse() {
                Ok(bytes) => Ok(Self::AtMost(bytes)),
                Err(source) => Err(ParseTilesError { text: text.to_owned(), source }),
            },
        }
    }
}

impl fmt::Display for TileChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Never => f.write_str("never"),
            Self::AtMost(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// A weight with what limits its tiles.
struct Candidate {
    weight: Tileable,
    /// Every tile but the last has a multiple of these rows.
    grain: usize,
}

impl Candidate {
    /// Bytes that its update needs for this many rows.
    fn update(&self, rows: usize) -> Bytes {
        Bytes(self.weight.row_bytes().get() * (rows * self.weight.operands) as u64)
    }

    /// Rows of tiles whose updates need at most this many bytes, if that is possible, and of as equal sizes as possible.
    fn rows(&self, most: Bytes) -> usize {
        let (all, grain) = (self.weight.rows, self.grain);
        let grains = all.div_ceil(grain);
        let fitting = (most.get() / self.update(grain).get().max(1)).clamp(1, grains as u64) as usize;
        grains.div_ceil(grains.div_ceil(fitting)) * grain
    }

    /// The fewest rows worth a tile.
    fn finest(&self) -> usize {
        let rows = (LEAST.get() / self.weight.row_bytes().get().max(1)).max(1) as usize;
        rows.next_multiple_of(self.grain)
    }
}

/// Chooses the weights to cut for a limit; `None` stands for the smallest limit that works. `graph` is the largest structure.
///
/// # Errors
///
/// [`Untraceable`] if the graph cannot be traced.
pub fn choose(
    graph: &Arc<Graph>,
    choice: TileChoice,
    limit: Option<Bytes>,
    machine: &Machine,
    freedom: Freedom,
) -> Result<Tiling, Untraceable> {
    let mut tiling = Tiling::default();
    let candidates = match choice {
        TileChoice::Never => return Ok(tiling),
        _ => candidates(graph),
    };
    if let TileChoice::AtMost(most) = choice {
        for candidate in &candidates {
            let rows = candidate.rows(Bytes(most.get().saturating_mul(candidate.weight.operands as u64)));
            if rows < candidate.weight.rows {
                tiling.insert(candidate.weight.name.clone(), rows);
            }
        }
        return Ok(tiling);
    }
    let floor = |graph: &Arc<Graph>| -> Result<Bytes, Untraceable> {
        let task = Task::estimate(&algorithms::smallest(graph), machine, freedom)?;
        Ok(pipeline::floor(&task).1)
    };
    let limit = match limit {
        Some(limit) => {
            let is_large =
                |candidate: &Candidate| candidate.update(candidate.weight.rows) > Bytes(limit.get() / LARGE);
            if !candidates.iter().any(is_large) || limit.get() as f64 >= NEAR * floor(graph)?.get() as f64 {
                return Ok(tiling);
            }
            limit
        }
        None => {
            // With the finest tiles, something else is what needs the most bytes: no tile has to be smaller than a part of that.
            let mut finest = Tiling::default();
            for candidate in candidates.iter().filter(|candidate| candidate.finest() < candidate.weight.rows)
            {
                finest.insert(candidate.weight.name.clone(), candidate.finest());
            }
            match graph.tiled(&finest) {
                Ok(tiled) => floor(&Arc::new(tiled))?,
                Err(_) => return Ok(tiling),
            }
        }
    };
    for candidate in candidates
        .iter()
        .filter(|candidate| candidate.update(candidate.weight.rows) > Bytes(limit.get() / LARGE))
    {
        let rows = candidate.rows(Bytes(limit.get() / SMALL));
        if rows < candidate.weight.rows {
            tiling.insert(candidate.weight.name.clone(), rows);
        }
    }
    Ok(tiling)
}

/// The graph with the weights in tiles that [`choose`] cuts for a limit, `None` being the smallest one; the same graph if none is.
///
/// # Errors
///
/// A [`CutError`] if the graph cannot be traced or cut.
pub fn cut(
    graph: &Arc<Graph>,
    choice: TileChoice,
    limit: Option<Bytes>,
    machine: &Machine,
    freedom: Freedom,
) -> Result<Arc<Graph>, CutError> {
    if !may_cut(graph, choice, limit.unwrap_or(Bytes::ZERO)) {
        return Ok(graph.clone());
    }
    let tiling = choose(graph, choice, limit, machine, freedom)?;
    Ok(if tiling.is_empty() { graph.clone() } else { Arc::new(graph.tiled(&tiling)?) })
}

/// Why weights cannot be cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CutError {
    /// The graph cannot be traced.
    #[error(transparent)]
    Untraceable(#[from] Untraceable),
    /// The graph uses a weight in another way than was expected.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Whether any weight could be cut for a limit that is at least this large.
pub(crate) fn may_cut(graph: &Graph, choice: TileChoice, limit: Bytes) -> bool {
    let is_large =
        |candidate: &Candidate| candidate.update(candidate.weight.rows) > Bytes(limit.get() / LARGE);
    match choice {
        TileChoice::Never => false,
        TileChoice::Auto => candidates(graph).iter().any(is_large),
        TileChoice::AtMost(_) => true,
    }
}

fn candidates(graph: &Graph) -> Vec<Candidate> {
    let candidate = |weight: Tileable| Candidate { grain: tile_grain(graph, &weight), weight };
    graph.tileable().into_iter().map(candidate).collect()
}

/// The weights of a graph that are in tiles.
pub fn tiled_weights(graph: &Graph) -> Vec<TiledWeight> {
    let wholes = graph.wholes().into_iter();
    let cut = wholes
        .filter(|whole| whole.tiles.len() > 1 && whole.role == elbowroom_graph::Role::Weight)
        .map(|whole| {
            let bytes = |position: usize| graph.tensors[graph.persistent[position].begin].bytes();
            TiledWeight {
                tiles: whole.tiles.len(),
                weight_bytes: Bytes(whole.bytes() as u64),
                tile_bytes: whole.tiles.clone().map(bytes).max().unwrap_or_default(),
                name: whole.name,
            }
        });
    cut.collect()
}
