//! Networks that are compared with PyTorch, as `pytorch.py` builds them too.

use elbowroom::graph::zoo::Options;
use elbowroom::graph::{Convolutions, Precision};
use elbowroom::network::{Model, Source};

use super::peer::Failure;

pub struct Network {
    pub name: &'static str,
    pub batch: usize,
    image: Option<usize>,
}

const fn network(name: &'static str, batch: usize, image: Option<usize>) -> Network {
    Network { name, batch, image }
}

pub const NETWORKS: [Network; 7] = [
    network("resnet18", 64, None),
    network("resnet50", 8, Some(224)),
    network("vgg16", 64, None),
    network("densenet121", 32, None),
    network("vit-b-16", 4, Some(224)),
    network("gpt2", 1, None),
    network("lstm", 20, None),
];

impl Network {
    pub fn of(name: &str) -> Result<&'static Self, Failure> {
        NETWORKS.iter().find(|network| network.name == name).ok_or_else(|| "there is no such network".into())
    }

    pub fn model(&self, precision: Precision, convolutions: Convolutions) -> Result<Model, Failure> {
        let source = Source::open(self.name)?.precision(precision).convolutions(convolutions);
        Ok(Model::of(source, Options::new(self.batch).image(self.image))?)
    }
}
