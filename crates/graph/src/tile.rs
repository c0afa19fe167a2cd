//! A training whose large weights are in tiles: each tile holds some rows of a weight and of its optimizer state, as persistent tensors of its
//! own, and is updated right behind its gradient. The update of a weight needs the weight, its gradient and its optimizer state at once; in
//! tiles it needs them for one tile.
//!
//! ```text
//! whole     grad-weight                  grad-input                   step
//! in tiles  grad-input, grad-weight, step of tile 0   grad-input, grad-weight, step of tile 1   …
//! ```
//!
//! The result is another graph, and planners, checker and engine see an ordinary one. It computes the same bits: rows of a result are
//! independent sums, and the one sum that runs over the rows of a weight, the gradient to the input, is continued from tile to tile where the
//! kernel would begin a new part of it ([`OpKind::LinearGradInputTile`]). [`Graph::wholes`] shows the persistent tensors as they are known to
//! files. If gradients are clipped, the tiles of a gradient wait for the norm of all gradients, to which each adds the squares of its rows; like
//! any tensor, they can be offloaded or recomputed until then.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use elbowroom_ir::trace::Phase;
use elbowroom_ir::{Bytes, Id, OpId, TensorId};

use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::{Graph, Node, Parameter, Role, Tile};
use crate::op::{Algorithm, Conv, Lookup, OpKind, Product};

/// The rows of each tile, for weights by their names. The last tile of a weight may have fewer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiling {
    rows: BTreeMap<String, usize>,
}

impl Tiling {
    /// Cuts a weight into tiles of this many rows, at least one.
    pub fn insert(&mut self, weight: impl Into<String>, rows: usize) {
        self.rows.insert(weight.into(), rows.max(1));
    }

    /// Whether no weight is cut.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The weights with the rows of their tiles, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.rows.iter().map(|(name, &rows)| (name.as_str(), rows))
    }
}

/// A weight that can be cut into tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tileable {
    /// Its name.
    pub name: String,
    /// The tensor at the beginning of the iteration.
    pub tensor: TensorId,
    /// Its first extent.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Tensors of this size that its update needs at once: weight, gradient and optimizer state. 1 if nothing updates it.
    pub operands: usize,
    /// Ops whose sums run over its rows. A tile must begin where all of them begin a new part.
    pub sums: Vec<OpId>,
}

impl Tileable {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> Bytes {
        Bytes(4 * self.width as u64)
    }
}

impl Graph {
    /// The weights that can be cut into tiles: matrices and windows that only dense layers, convolutions and lookups use, and whose gradient
    /// nothing but their update and the norm of all gradients reads.
    pub fn tileable(&self) -> Vec<Tileable> {
        let links = Links { readers: self.readers(), producers: self.producers() };
        let weights = self.persistent.iter().filter(|parameter| parameter.role == Role::Weight);
        weights.filter_map(|parameter| Some(Uses::of(self, &links, parameter)?.weight)).collect()
    }

    /// The same iteration with these weights in tiles. Weights that this graph does not have are ignored, so that one tiling serves all
    /// structures of a network.
    ///
    /// # Errors
    /// [`BuildError::Extents`] if a weight is not among the [tileable](Self::tileable) ones.
    pub fn tiled(&self, tiling: &Tiling) -> Result<Self, BuildError> {
        let links = Links { readers: self.readers(), producers: self.producers() };
        let mut splits = Vec::new();
        for parameter in self.persistent.iter().filter(|parameter| parameter.role == Role::Weight) {
            let Some(&rows) = tiling.rows.get(&parameter.name) else { continue };
            let uses = Uses::of(self, &links, parameter).ok_or_else(|| BuildError::Extents {
                node: parameter.name.clone(),
                why: "this weight cannot be cut into tiles".to_owned(),
            })?;
            let all = uses.weight.rows;
            if rows < all {
                let tiles = (0..all).step_by(rows).map(|start| start..(start + rows).min(all)).collect();
                splits.push(Split { uses, tiles });
            }
        }
        if splits.is_empty() {
            return Ok(self.clone());
        }
        Copy::new(self, splits).copy()
    }

    fn readers(&self) -> Vec<Vec<OpId>> {
        let mut readers = vec![Vec::new(); self.tensors.len()];
        for (id, node) in self.nodes.iter() {
            node.inputs.iter().for_each(|input| readers[input.index()].push(id));
        }
        readers
    }

    fn producers(&self) -> HashMap<TensorId, OpId> {
        self.nodes
            .iter()
            .flat_map(|(id, node)| node.outputs.iter().map(move |&output| (output, id)))
            .collect()
    }
}

/// Who reads and who makes each tensor.
struct Links {
    readers: Vec<Vec<OpId>>,
    producers: HashMap<TensorId, OpId>,
}

/// How a graph uses a weight.
struct Uses {
    weight: Tileable,
    /// Its gradient at every stage, the last of which its update reads.
    gradients: HashSet<TensorId>,
    /// The last op that makes one of them, and the last one that computes a contribution to it.
    last_gradient: Option<OpId>,
    last_product: Option<OpId>,
    /// The last op that reads the weight before its update.
    last_reader: Option<OpId>,
    /// Its update.
    step: Option<OpId>,
}

impl Uses {
    /// `None` if the weight cannot be cut.
    fn of(graph: &Graph, links: &Links, parameter: &Parameter) -> Option<Self> {
        let readers = &links.readers;
        let tensor = parameter.begin;
        let dims = graph.tensors[tensor].shape.dims();
        let (&rows, rest) = dims.split_first().filter(|(_, rest)| !rest.is_empty())?;
        let width = rest.iter().product();
        if rows < 2 || width == 0 || parameter.tile.is_some() {
            return None;
        }
        let (mut sums, mut step, mut last_reader) = (Vec::new(), None, None);
        for &reader in &readers[tensor.index()] {
            let node = &graph.nodes[reader];
            let positions = node.inputs.iter().filter(|&&input| input == tensor).count();
            if positions != 1 {
                return None;
            }
            match (&node.kind, node.phase) {
                (OpKind::SgdStep { .. } | OpKind::AdamStep { .. }, _) if node.inputs[0] == tensor => {
                    step = Some(reader);
                    continue;
                }
                (kind, phase) if node.inputs.get(1) == Some(&tensor) => {
                    if extents(kind) != Some([rows, width]) {
                        return None;
                    }
                    match (kind, phase) {
                        (OpKind::Linear { .. } | OpKind::Conv2d { .. } | OpKind::Embedding(_), _) => {}
                        (OpKind::LinearGradInput(_) | OpKind::Conv2dGradInput(_), Phase::Backward) => {
                            sums.push(reader)
                        }
                        _ => return None,
                    }
                }
                _ => return None,
            }
            last_reader = Some(reader);
        }
        let mut uses = Self {
            weight: Tileable { name: parameter.name.clone(), tensor, rows, width, operands: 1, sums },
            gradients: HashSet::new(),
            last_gradient: None,
            last_product: None,
            last_reader,
            step,
        };
        if let Some(step) = step {
            let update = &graph.nodes[step];
            uses.weight.operands = update.inputs.len();
            uses.gradient(graph, links, update.inputs[1])?;
            let owned = |id: &OpId| {
                let node = &graph.nodes[*id];
                let is_squared = matches!(node.kind, OpKind::RowSquares { rows: all, .. } if all == rows);
                *id == step || is_squared || node.outputs.iter().any(|output| uses.gradients.contains(output))
            };
            if !uses.gradients.iter().all(|gradient| readers[gradient.index()].iter().all(owned)) {
                return None;
            }
            uses.last_gradient =
                uses.gradients.iter().filter_map(|made| links.producers.get(made)).max().copied();
        }
        Some(uses)
    }

    /// Adds a gradient and those from which it is computed.
    fn gradient(&mut self, graph: &Graph, links: &Links, gradient: TensorId) -> Option<()> {
        if !self.gradients.insert(gradient) {
            return Some(());
        }
        let producer = *links.producers.get(&gradient)?;
        let node = &graph.nodes[producer];
        let earlier = match &node.kind {
            OpKind::Add { .. } | OpKind::Accumulate { .. } => &node.inputs[..],
            OpKind::Scale { .. } | OpKind::ScaleBy { .. } => &node.inputs[..1],
            kind @ (OpKind::LinearGradWeight { .. }
            | OpKind::Conv2dGradWeight(_)
            | OpKind::EmbeddingGrad { .. }) => {
                if extents(kind) != Some([self.weight.rows, self.weight.width]) {
                    return None;
                }
                self.last_product = self.last_product.max(Some(producer));
                &node.inputs[2..]
            }
            _ => return None,
        };
        earlier.iter().try_for_each(|&earlier| self.gradient(graph, links, earlier))
    }
}

/// The rows of the weight that an op uses, and the elements of a row. `None` if the op does not add in the usual order.
fn extents(kind: &OpKind) -> Option<[usize; 2]> {
    Some(match kind {
        OpKind::Linear { product, .. }
        | OpKind::LinearGradInput(product)
        | OpKind::LinearGradWeight { product, .. } => [product.outputs, product.inputs],
        OpKind::Embedding(lookup) | OpKind::EmbeddingGrad { lookup, .. } => [lookup.vocabulary, lookup.width],
        kind => {
            let conv = kind.conv().filter(|conv| conv.algorithm.has_usual_bits())?;
            [conv.out_channels, conv.in_channels * conv.window.area()]
        }
    })
}

/// A weight that is cut.
struct Split {
    uses: Uses,
    /// The rows of every tile.
    tiles: Vec<Range<usize>>,
}

/// A graph under construction from the nodes of another one.
struct Copy<'g> {
    graph: &'g Graph,
    builder: Builder,
    splits: Vec<Split>,
    /// For a tensor of the original that is cut, or is a gradient of one that is cut, the position in `splits`.
    cut: HashMap<TensorId, usize>,
    /// Tensors that are not cut, by what they are in the original.
    here: HashMap<TensorId, TensorId>,
    /// Tiles that exist.
    tiles: HashMap<(TensorId, usize), TensorId>,
    /// Columns of the gradient to the output of a layer, with the rows of its weight to which they belong.
    columns: HashMap<(TensorId, usize, usize), TensorId>,
    /// The op that makes a tensor of the original.
    producers: HashMap<TensorId, OpId>,
    /// Whether the update of a weight has been appended.
    updated: Vec<bool>,
}

impl<'g> Copy<'g> {
    fn new(graph: &'g Graph, splits: Vec<Split>) -> Self {
        let mut builder = Builder::new(graph.name.clone(), Mode::Training);
        let (mut cut, mut here, mut tiles) = (HashMap::new(), HashMap::new(), HashMap::new());
        for (index, split) in splits.iter().enumerate() {
            cut.extend(split.uses.gradients.iter().map(|&gradient| (gradient, index)));
        }
        for parameter in &graph.persistent {
            let shape = graph.tensors[parameter.begin].shape;
            let belongs = |split: &Split| {
                let weight = &split.uses.weight;
                let state = parameter.role == Role::Optimizer
                    && graph.tensors[weight.tensor].shape == shape
                    && parameter.name.strip_prefix(&weight.name).is_some_and(|rest| rest.starts_with('.'));
                parameter.begin == weight.tensor || state
            };
            let Some(index) = splits.iter().position(belongs) else {
                let made = builder.persistent(parameter.name.clone(), shape, parameter.role, parameter.init);
                here.insert(parameter.begin, made.id);
                continue;
            };
            cut.insert(parameter.begin, index);
            let Split { uses, tiles: rows } = &splits[index];
            for (tile, rows) in rows.iter().enumerate() {
                let mut dims = shape.dims().to_vec();
                dims[0] = rows.len();
                let name = format!("{}.tile{tile}", parameter.name);
                let extents = crate::Shape::new(&dims);
                let made = builder.persistent(name, extents, parameter.role, parameter.init);
                let start = rows.start * uses.weight.width;
                if let Some(last) = builder.graph.persistent.last_mut() {
                    last.tile = Some(Tile { of: parameter.name.clone(), shape, start });
                }
                tiles.insert((parameter.begin, tile), made.id);
            }
        }
        let updated = vec![false; splits.len()];
        let producers = graph.producers();
        Self { graph, builder, splits, cut, here, tiles, columns: HashMap::new(), producers, updated }
    }

    fn copy(mut self) -> Result<Graph, BuildError> {
        let graph = self.graph;
        for (id, node) in graph.nodes.iter() {
            self.builder.phase = node.phase;
            match &node.kind {
                OpKind::Input { slot } => {
                    let input = &graph.inputs[*slot];
                    let shape = graph.tensors[input.tensor].shape;
                    let made = self.builder.input(&input.name, shape, input.content);
                    self.here.insert(input.tensor, made.id);
                }
                OpKind::Output { slot } => {
                    let output = &graph.outputs[*slot];
                    let shape = graph.tensors[output.tensor].shape;
                    let id = self.tensor(node, output.tensor)?;
                    self.builder.output(&output.name, Var { id, shape });
                }
                _ => self.node(id, node)?,
            }
        }
        Ok(self.builder.finish())
    }

    /// The copy of a tensor that is not cut.
    fn tensor(&self, node: &Node, original: TensorId) -> Result<TensorId, BuildError> {
        let missing = || BuildError::Overwritten {
            node: node.name.clone(),
            value: self.graph.tensors[original].name.clone(),
        };
        self.here.get(&original).copied().ok_or_else(missing)
    }

    fn node(&mut self, id: OpId, node: &Node) -> Result<(), BuildError> {
        let of = |tensor: Option<&TensorId>| tensor.and_then(|tensor| self.cut.get(tensor)).copied();
        if let Some(index) = of(node.outputs.first()).filter(|_| node.phase != Phase::Update) {
            // The last contribution to a gradient is computed tile by tile, right before the update of the tile.
            if Some(id) < self.splits[index].uses.last_product {
                for tile in 0..self.splits[index].tiles.len() {
                    self.gradient(index, tile, node.outputs[0])?;
                }
            }
            return Ok(());
        }
        if let (Some(index), &OpKind::RowSquares { width, .. }) = (of(node.inputs.first()), &node.kind) {
            return self.squares(index, node, width);
        }
        if let Some(index) = of(node.inputs.first()).filter(|_| node.phase == Phase::Update) {
            if !std::mem::replace(&mut self.updated[index], true) {
                for tile in 0..self.splits[index].tiles.len() {
                    self.update(index, tile)?;
                }
            }
            return Ok(());
        }
        match of(node.inputs.get(1)) {
            Some(index) if node.phase == Phase::Forward => self.forward(index, node),
            Some(index) => self.sum(index, id, node),
            None => {
                let inputs: Result<Vec<_>, _> =
                    node.inputs.iter().map(|&input| self.tensor(node, input)).collect();
                let made = self.builder.push(node.name.clone(), node.kind.clone(), &inputs?)?;
                self.here.extend(node.outputs.iter().copied().zip(made.iter().map(|made| made.id)));
                Ok(())
            }
        }
    }

    /// A layer, tile by tile.
    fn forward(&mut self, index: usize, node: &Node) -> Result<(), BuildError> {
        let tiles = self.splits[index].tiles.clone();
        let x = self.tensor(node, node.inputs[0])?;
        let bias = node.inputs.get(2).map(|&bias| self.tensor(node, bias)).transpose()?;
        let (mut parts, mut widths, mut outer) = (Vec::new(), Vec::new(), 1);
        for (tile, rows) in tiles.iter().enumerate() {
            let name = format!("{}.tile{tile}", node.name);
            let mut operands = vec![x, self.tiles[&(node.inputs[1], tile)]];
            if let (OpKind::Embedding(lookup), Some(&y)) = (&node.kind, parts.first()) {
                operands.push(y);
                parts[0] =
                    self.builder.push1(name, OpKind::EmbeddingTile(rows_of(lookup, rows)), &operands)?.id;
                continue;
            }
            if let Some(bias) = bias {
                let total = tiles.last().map_or(0, |last| last.end);
                let kind = OpKind::Slice { outer: 1, total, start: rows.start, width: rows.len() };
                operands.push(self.builder.push1(format!("{name}.bias"), kind, &[bias])?.id);
            }
            let kind = match &node.kind {
                OpKind::Linear { product, bias } => {
                    outer = product.rows;
                    widths.push(rows.len());
                    OpKind::Linear { product: Product { outputs: rows.len(), ..*product }, bias: *bias }
                }
                OpKind::Conv2d { conv, bias } => {
                    outer = conv.batch;
                    widths.push(rows.len() * conv.out_size[0] * conv.out_size[1]);
                    OpKind::Conv2d { conv: Conv { out_channels: rows.len(), ..*conv }, bias: *bias }
                }
                OpKind::Embedding(lookup) => OpKind::Embedding(rows_of(lookup, rows)),
                _ => return Err(unknown(node)),
            };
            parts.push(self.builder.push1(name, kind, &operands)?.id);
        }
        let y = match parts[..] {
            [y] => y,
            _ => self.builder.push1(node.name.clone(), OpKind::Concat { outer, widths }, &parts)?.id,
        };
        self.here.insert(node.outputs[0], y);
        Ok(())
    }

    /// The gradient to the input of a layer, tile by tile. Behind the last use of a tile, its gradient and its update follow.
    fn sum(&mut self, index: usize, id: OpId, node: &Node) -> Result<(), BuildError> {
        let Split { uses, tiles } = &self.splits[index];
        let update = uses.step.is_some() && uses.last_reader == Some(id) && uses.last_gradient < Some(id);
        let whole = uses.weight.rows;
        let mut sum = None;
        for (tile, rows) in tiles.clone().into_iter().enumerate() {
            self.builder.phase = node.phase;
            let dy = self.columns(node, node.inputs[0], &rows)?;
            let mut operands = vec![dy, self.tiles[&(node.inputs[1], tile)]];
            operands.extend(sum);
            let kind = match (&node.kind, sum) {
                (OpKind::LinearGradInput(product), sum) => {
                    let product = Product { outputs: rows.len(), ..*product };
                    match sum {
                        None => OpKind::LinearGradInput(product),
                        Some(_) => OpKind::LinearGradInputTile { product, whole },
                    }
                }
                (OpKind::Conv2dGradInput(conv), sum) => {
                    let conv = Conv { out_channels: rows.len(), ..*conv };
                    match sum {
                        None => OpKind::Conv2dGradInput(conv),
                        // Only these continue a sum.
                        Some(_) if conv.algorithm == Algorithm::Direct => {
                            let conv = Conv { algorithm: Algorithm::Tiled, ..conv };
                            OpKind::Conv2dGradInputTile { conv, whole }
                        }
                        Some(_) => OpKind::Conv2dGradInputTile { conv, whole },
                    }
                }
                _ => return Err(unknown(node)),
            };
            let name = if tile == 0 { node.name.clone() } else { format!("{}.tile{tile}", node.name) };
            sum = Some(self.builder.push1(name, kind, &operands)?.id);
            if update {
                self.update(index, tile)?;
                self.updated[index] = true;
            }
        }
        self.here.extend(sum.map(|sum| (node.outputs[0], sum)));
        Ok(())
    }

    /// The squares of the rows of a gradient, tile by tile: every row is a sum of its own.
    fn squares(&mut self, index: usize, node: &Node, width: usize) -> Result<(), BuildError> {
        let tiles = self.splits[index].tiles.clone();
        let (mut parts, mut widths) = (Vec::new(), Vec::new());
        for (tile, rows) in tiles.iter().enumerate() {
            let gradient = self.gradient(index, tile, node.inputs[0])?;
            self.builder.phase = node.phase;
            let kind = OpKind::RowSquares { rows: rows.len(), width };
            parts.push(self.builder.push1(format!("{}.tile{tile}", node.name), kind, &[gradient])?.id);
            widths.push(rows.len());
        }
        let made = self.builder.push1(node.name.clone(), OpKind::Concat { outer: 1, widths }, &parts)?.id;
        self.here.insert(node.outputs[0], made);
        Ok(())
    }

    /// A tile of a gradient, with those from which it is computed, as far as they do not exist yet.
    fn gradient(&mut self, index: usize, tile: usize, original: TensorId) -> Result<TensorId, BuildError> {
        if let Some(&made) = self.tiles.get(&(original, tile)) {
            return Ok(made);
        }
        let graph = self.graph;
        let node = &graph.nodes[self.producers[&original]];
        let rows = self.splits[index].tiles[tile].clone();
        let len = rows.len() * self.splits[index].uses.weight.width;
        let (mut operands, earlier) = match &node.kind {
            OpKind::Add { .. } | OpKind::Accumulate { .. } | OpKind::Scale { .. } => {
                (Vec::new(), &node.inputs[..])
            }
            OpKind::ScaleBy { .. } => (Vec::new(), &node.inputs[..1]),
            OpKind::EmbeddingGrad { .. } => {
                let operands = [self.tensor(node, node.inputs[0])?, self.tensor(node, node.inputs[1])?];
                (operands.to_vec(), &node.inputs[2..])
            }
            _ => {
                self.builder.phase = node.phase;
                let dy = self.columns(node, node.inputs[1], &rows)?;
                (vec![self.tensor(node, node.inputs[0])?, dy], &node.inputs[2..])
            }
        };
        for &earlier in earlier {
            operands.push(self.gradient(index, tile, earlier)?);
        }
        if matches!(node.kind, OpKind::ScaleBy { .. }) {
            operands.push(self.tensor(node, node.inputs[1])?);
        }
        let kind = match &node.kind {
            OpKind::Add { .. } => OpKind::Add { len },
            OpKind::Accumulate { .. } => OpKind::Accumulate { len },
            OpKind::Scale { factor, .. } => OpKind::Scale { len, factor: *factor },
            OpKind::ScaleBy { .. } => OpKind::ScaleBy { len },
            &OpKind::LinearGradWeight { product, accumulate } => {
                OpKind::LinearGradWeight { product: Product { outputs: rows.len(), ..product }, accumulate }
            }
            &OpKind::Conv2dGradWeight(conv) => {
                OpKind::Conv2dGradWeight(Conv { out_channels: rows.len(), ..conv })
            }
            OpKind::EmbeddingGrad { lookup, accumulate } => {
                OpKind::EmbeddingGrad { lookup: rows_of(lookup, &rows), accumulate: *accumulate }
            }
            _ => return Err(unknown(node)),
        };
        self.builder.phase = node.phase;
        let made = self.builder.push1(format!("{}.tile{tile}", node.name), kind, &operands)?.id;
        self.tiles.insert((original, tile), made);
        Ok(made)
    }

    /// The update of a tile.
    fn update(&mut self, index: usize, tile: usize) -> Result<(), BuildError> {
        let Some(step) = self.splits[index].uses.step else { return Ok(()) };
        let graph = self.graph;
        let node = &graph.nodes[step];
        let mut operands = Vec::with_capacity(node.inputs.len());
        for (position, &input) in node.inputs.iter().enumerate() {
            operands.push(match position {
                1 => self.gradient(index, tile, input)?,
                _ => *self.tiles.get(&(input, tile)).ok_or_else(|| unknown(node))?,
            });
        }
        let len = self.splits[index].tiles[tile].len() * self.splits[index].uses.weight.width;
        let kind = match node.kind {
            OpKind::SgdStep { sgd, .. } => OpKind::SgdStep { len, sgd },
            OpKind::AdamStep { adam, .. } => OpKind::AdamStep { len, adam },
            _ => return Err(unknown(node)),
        };
        self.builder.phase = Phase::Update;
        self.builder.push(format!("{}.tile{tile}", node.name), kind, &operands)?;
        Ok(())
    }

    /// The columns of the gradient to the output of a layer that belong to some rows of its weight.
    fn columns(&mut self, node: &Node, dy: TensorId, rows: &Range<usize>) -> Result<TensorId, BuildError> {
        if let Some(&made) = self.columns.get(&(dy, rows.start, rows.end)) {
            return Ok(made);
        }
        let [outer, total, each] = match &node.kind {
            OpKind::LinearGradInput(product) | OpKind::LinearGradWeight { product, .. } => {
                [product.rows, product.outputs, 1]
            }
            kind => {
                let conv = kind.conv().ok_or_else(|| unknown(node))?;
                let plane = conv.out_size[0] * conv.out_size[1];
                [conv.batch, conv.out_channels * plane, plane]
            }
        };
        let kind = OpKind::Slice { outer, total, start: rows.start * each, width: rows.len() * each };
        let name = format!("{}.rows{}", self.graph.tensors[dy].name, rows.start);
        let whole = self.tensor(node, dy)?;
        let made = self.builder.push1(name, kind, &[whole])?.id;
        self.columns.insert((dy, rows.start, rows.end), made);
        Ok(made)
    }
}

/// A lookup in some rows of its table.
fn rows_of(lookup: &Lookup, rows: &Range<usize>) -> Lookup {
    Lookup { first: lookup.first + rows.start, vocabulary: rows.len(), ..*lookup }
}

fn unknown(node: &Node) -> BuildError {
    let why = format!("{} is not computed in tiles", node.kind.name());
    BuildError::Extents { node: node.name.clone(), why }
}
