//! Networks of your own from layers: each layer takes the extents of its input from the layer before it, so that no shape is computed by hand.
//!
//! A [`Sequential`] is layers in a row; [`Residual`] and [`Branches`] compose them, and any type that implements [`Layer`] is one. A
//! [`Classifier`] makes a network of them that can be trained, evaluated and built for another batch. Parameters have the names that PyTorch's
//! `nn.Sequential` gives them (`0.weight`), or those that [`Sequential::named`] sets.
//!
//! ```
//! use elbowroom::ir::Bytes;
//! use elbowroom::nn::{Activation, BatchNorm, Classifier, Conv2d, Flatten, Linear, Pool2d, Residual, Sequential};
//! use elbowroom::train::Training;
//!
//! let block = Sequential::new()
//!     .then(Conv2d::new(16, 3).padding(1).no_bias())
//!     .then(BatchNorm)
//!     .then(Activation::RELU)
//!     .then(Conv2d::new(16, 3).padding(1));
//! let layers = Sequential::new()
//!     .then(Conv2d::new(16, 3).padding(1))
//!     .then(Activation::RELU)
//!     .then(Residual::new(block))
//!     .then(Pool2d::maximum(2))
//!     .then(Flatten)
//!     .then(Linear::new(10));
//! let network = Classifier::of_images([3, 8, 8], 10, layers).batch(4);
//! let report = Training::new(network, Bytes(1 << 20)).evaluations(20).iterations(2).verify(true).run()?;
//! assert_eq!(report.verified, Some(true));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod classifier;
mod layers;

use std::fmt;
use std::sync::Arc;

use elbowroom_graph::{BuildError, Builder, Var};

pub use classifier::Classifier;
pub use layers::{
    Activation, BatchNorm, Conv2d, ConvTranspose2d, Dropout, Embedding, Flatten, LayerNorm, Linear, Pool2d,
    Positions, SelfAttention,
};

/// A layer: a part of a network with one input and one output.
pub trait Layer: Send + Sync {
    /// Adds the layer to a graph. `name` is unique in it: names of parameters and ops begin with it.
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if the input has extents that the layer does not take.
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError>;
}

/// Layers in a row.
#[derive(Clone, Default)]
pub struct Sequential {
    layers: Vec<(String, Arc<dyn Layer>)>,
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.layers.iter().map(|(name, _)| name)).finish()
    }
}

impl Sequential {
    /// No layer: the identity.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer behind the others, named by its position from zero.
    pub fn then(self, layer: impl Layer + 'static) -> Self {
        let name = self.layers.len().to_string();
        self.named(name, layer)
    }

    /// Adds a layer behind the others under a name of its own, which no other layer here has.
    pub fn named(mut self, name: impl Into<String>, layer: impl Layer + 'static) -> Self {
        self.layers.push((name.into(), Arc::new(layer)));
        self
    }
}

impl Layer for Sequential {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        for (index, (layer, _)) in self.layers.iter().enumerate() {
            if self.layers[..index].iter().any(|(other, _)| other == layer) {
                return Err(refuse(name, format!("two layers are called `{layer}`")));
            }
        }
        self.layers.iter().try_fold(x, |x, (layer, forward)| forward.forward(b, &join(name, layer), x))
    }
}

/// The sum of a shortcut and a body: `shortcut(x) + body(x)`. Parameters of the body have no name in between, those of the shortcut begin with
/// `shortcut`.
#[derive(Clone, Debug)]
pub struct Residual {
    body: Sequential,
    shortcut: Sequential,
}

impl Residual {
    /// With the identity as shortcut.
    pub fn new(body: Sequential) -> Self {
        Self { body, shortcut: Sequential::new() }
    }

    /// Sets the shortcut, for a body whose output has other extents than its input.
    pub fn shortcut(self, shortcut: Sequential) -> Self {
        Self { shortcut, ..self }
    }
}

impl Layer for Residual {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        let y = self.body.forward(b, name, x)?;
        let x = self.shortcut.forward(b, &join(name, "shortcut"), x)?;
        if x.shape != y.shape {
            let why = format!(
                "the body gives {} and the shortcut {}, so there is no sum; set a shortcut that gives the same",
                y.shape, x.shape
            );
            return Err(refuse(name, why));
        }
        b.add(&join(name, "sum"), x, y)
    }
}

/// Several layers on the same input, whose outputs are joined along the second extent.
#[derive(Clone, Debug, Default)]
pub struct Branches(pub Vec<Sequential>);

impl Layer for Branches {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        let branch = |(index, branch): (usize, &Sequential)| {
            branch.forward(b, &join(name, &format!("branch{index}")), x)
        };
        let parts = self.0.iter().enumerate().map(branch).collect::<Result<Vec<_>, _>>()?;
        if parts
            .iter()
            .any(|part| part.shape.dims().len() != parts[0].shape.dims().len() || part.shape.dims().len() < 2)
        {
            let shapes: Vec<String> = parts.iter().map(|part| part.shape.to_string()).collect();
            return Err(refuse(
                name,
                format!("{} cannot be joined along the second extent", shapes.join(", ")),
            ));
        }
        b.concat(name, &parts)
    }
}

/// The name of a part.
fn join(name: &str, part: &str) -> String {
    if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") }
}

fn refuse(name: &str, why: String) -> BuildError {
    let node = if name.is_empty() { "network" } else { name };
    BuildError::Extents { node: node.to_owned(), why }
}

/// Refuses a tensor of another number of extents.
fn expect_extents(name: &str, what: &str, x: Var, takes: &str, count: usize) -> Result<(), BuildError> {
    match x.shape.dims().len() == count {
        true => Ok(()),
        false => Err(refuse(name, format!("{what} takes {takes}, and this is {}", x.shape))),
    }
}
