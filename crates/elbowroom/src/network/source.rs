//! Where a network is from: its name in the zoo, or an ONNX file.

use std::path::Path;
use std::sync::Arc;

use elbowroom_graph::zoo::{self, Options, Variation};
use elbowroom_graph::{Convolutions, Graph, Mode, Precision};
use elbowroom_onnx::{Built, Loss, Weight};

use super::NetworkError;

/// A network of the zoo by name, or the network of an ONNX file. A name that ends with `.onnx` is a path.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    /// The file, and what its network learns; `None` of a network of the zoo.
    file: Option<(Arc<elbowroom_onnx::Model>, Loss)>,
    precision: Precision,
    convolutions: Convolutions,
}

impl Source {
    /// The network of this name, or of this file with the loss cross-entropy.
    ///
    /// # Errors
    ///
    /// [`NetworkError::Onnx`] if the file cannot be read. Whether the zoo has a name is found where the network is built.
    pub fn open(name: impl Into<String>) -> Result<Self, NetworkError> {
        let name = name.into();
        let file = match elbowroom_onnx::Model::is_named(&name) {
            true => Some((Arc::new(elbowroom_onnx::Model::open(Path::new(&name))?), Loss::default())),
            false => None,
        };
        Ok(Self { name, file, precision: Precision::default(), convolutions: Convolutions::default() })
    }

    /// Sets what the network of a file learns. A network of the zoo has its own loss.
    pub fn loss(mut self, loss: Loss) -> Self {
        if let Some((_, own)) = &mut self.file {
            *own = loss;
        }
        self
    }

    /// Sets how activations and their gradients are stored ([`Graph::in_precision`]); in `f32` by default.
    pub fn precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Sets the arithmetic of convolutions ([`Graph::with_convolutions`]); plain by default.
    pub fn convolutions(self, convolutions: Convolutions) -> Self {
        Self { convolutions, ..self }
    }

    /// Its name, or the path of its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is of a file, which has values that the parameters begin with.
    pub fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// The batch that its file fixes.
    pub fn batch(&self) -> Option<usize> {
        self.file.as_ref().and_then(|(model, _)| model.batch())
    }

    /// The graph of an iteration.
    ///
    /// # Errors
    ///
    /// [`NetworkError::Zoo`] or [`NetworkError::Onnx`] if it cannot be built with these options.
    pub fn build(&self, options: &Options) -> Result<Graph, NetworkError> {
        Ok(self.built(options)?.graph)
    }

    /// The graph of an iteration, with the places of the values that its parameters begin with: of a network of the zoo none.
    fn built(&self, options: &Options) -> Result<Built, NetworkError> {
        let built = match &self.file {
            Some((file, loss)) => file.build(options, *loss)?,
            None => Built { graph: zoo::build(&self.name, options)?, weights: Vec::new() },
        };
        let graph = match self.precision {
            Precision::F32 => built.graph,
            precision => built.graph.in_precision(precision)?,
        };
        Ok(Built { graph: graph.with_convolutions(self.convolutions), ..built })
    }

    /// The values that parameters begin with, where these are not drawn from the seed.
    ///
    /// # Errors
    ///
    /// Those of [`build`](Self::build).
    pub fn initial_values(&self, options: &Options) -> Result<Vec<Weight>, NetworkError> {
        match self.file {
            Some(_) => Ok(self.built(options)?.weights),
            None => Ok(Vec::new()),
        }
    }

    /// The options with the network's own default in every place that was left open; `None` where it has no such option.
    ///
    /// # Errors
    ///
    /// Those of [`build`](Self::build).
    pub fn resolved(&self, options: &Options) -> Result<Options, NetworkError> {
        Ok(match &self.file {
            Some((file, _)) => file.resolved(options)?,
            None => zoo::resolved(&self.name, options)?,
        })
    }

    /// How the network varies between iterations.
    pub fn variation(&self, mode: Mode) -> Option<Variation> {
        match self.file {
            Some(_) => None,
            None => zoo::variation(&self.name, mode),
        }
    }
}
