//! What every network uses where [`Options`] leave something open, as values that a program can print. Tests build each network both ways
//! and compare the graphs.

use super::{OptimizerKind, Options, SMALL_IMAGE, ZooError, convnext, diffusion, llama, resnet_depth, vit};
use crate::builder::Mode;

/// Sizes of a network that reads images: its image size and its classes, where those do not follow from the image size.
struct Images(usize, Option<usize>);

/// The options with the network's own default in every place that was left open. What the network does not take is `None`: a language model
/// takes no image size, inference no optimizer.
///
/// # Errors
///
/// [`ZooError::Unknown`] or [`ZooError::Depth`] if no network has this name.
pub fn resolved(name: &str, options: &Options) -> Result<Options, ZooError> {
    let open = Options::new(options.batch).mode(options.mode).draw(options.draw);
    let images = |Images(image, classes): Images, width: Option<usize>| {
        let image = options.image.unwrap_or(image);
        let classes = classes.unwrap_or(if image < SMALL_IMAGE { 10 } else { 1000 });
        open.clone()
            .image(image)
            .classes(options.classes.or(Some(classes)))
            .width(width.map(|width| options.width.unwrap_or(width)))
    };
    let tokens = |length: usize, vocabulary: usize, width: usize, layers: usize| {
        open.clone()
            .length(options.length.or(Some(length)))
            .vocabulary(options.vocabulary.or(Some(vocabulary)))
            .width(options.width.or(Some(width)))
            .layers(options.layers.or(Some(layers)))
    };
    let (sizes, optimizer) = match name {
        "alexnet" => (images(Images(227, None), None), Some((OptimizerKind::Sgd, 0.01))),
        "googlenet" => (images(Images(224, None), None), Some((OptimizerKind::Sgd, 0.01))),
        "vgg11" | "vgg13" | "vgg16" | "vgg19" => {
            (images(Images(32, None), None), Some((OptimizerKind::Sgd, 0.01)))
        }
        "densenet121" | "densenet161" | "densenet169" | "densenet201" => {
            (images(Images(32, None), None), Some((OptimizerKind::Sgd, 0.05)))
        }
        "inception-v3" | "inception-resnet-v2" => {
            (images(Images(299, None), None), Some((OptimizerKind::Sgd, 0.02)))
        }
        "mobilenet-v2" => (images(Images(32, None), None), Some((OptimizerKind::Sgd, 0.02))),
        "efficientnet-b0" => (images(Images(224, None), None), Some((OptimizerKind::Sgd, 0.02))),
        "convnext-tiny" => {
            (images(Images(224, None), Some(convnext::WIDTH)), Some((OptimizerKind::Adam, 1e-3)))
        }
        "vit-b-16" => {
            let sizes = images(Images(224, None), Some(vit::WIDTH));
            (sizes.layers(options.layers.or(Some(vit::LAYERS))), Some((OptimizerKind::Adam, 1e-3)))
        }
        "diffusion" => {
            let sizes = images(Images(diffusion::IMAGE, None), Some(diffusion::WIDTH));
            (sizes.classes(None), Some((OptimizerKind::Adam, 2e-4)))
        }
        "llama" | "tinyllama" => {
            let size = if name == "llama" { llama::SMALL } else { llama::TINY };
            let llama::LlamaSize { length, vocabulary, width, layers, .. } = size;
            (tokens(length, vocabulary, width, layers), Some((OptimizerKind::Adam, 1e-3)))
        }
        "unet" => (images(Images(128, Some(2)), Some(64)), Some((OptimizerKind::Sgd, 0.01))),
        "kmeans" => {
            let (classes, width) = (options.classes.or(Some(100)), options.width.or(Some(64)));
            (open.clone().classes(classes).width(width), None)
        }
        "lstm" => (tokens(35, 256, 200, 2), Some((OptimizerKind::Adam, 2e-3))),
        "seq2seq" => {
            let sizes = tokens(25, 256, 256, 2);
            let target = options.target.or(sizes.length);
            (sizes.target(target), Some((OptimizerKind::Adam, 1e-3)))
        }
        "gpt" => (tokens(128, 256, 256, 4), Some((OptimizerKind::Adam, 1e-3))),
        "gpt2" => (tokens(1024, 50_257, 768, 12), Some((OptimizerKind::Adam, 1e-3))),
        _ => {
            let width = resnet_depth(name, options)?.1.width();
            (images(Images(32, None), Some(width)), Some((OptimizerKind::Sgd, 0.02)))
        }
    };
    Ok(match optimizer.filter(|_| options.mode == Mode::Training) {
        Some((kind, rate)) => sizes
            .optimizer(options.optimizer.or(Some(kind)))
            .weight_decay(
                options.weight_decay.or(Some(options.optimizer.unwrap_or(kind).default_weight_decay())),
            )
            .learning_rate(options.learning_rate_or(kind, rate)),
        None => sizes,
    })
}

/// The options that are given but that the network does not take, by the names of their fields: an image size of a language model, the
/// optimizer of a network built for inference.
///
/// # Errors
///
/// [`ZooError::Unknown`] or [`ZooError::Depth`] if no network has this name.
pub fn without_effect(name: &str, options: &Options) -> Result<Vec<&'static str>, ZooError> {
    Ok(not_taken(options, &resolved(name, options)?))
}

/// The options that are given and `None` in `taken`, the [resolved] ones, by the names of their fields.
pub fn not_taken(options: &Options, taken: &Options) -> Vec<&'static str> {
    let fields = [
        ("image", options.image.is_some(), taken.image.is_some()),
        ("classes", options.classes.is_some(), taken.classes.is_some()),
        ("length", options.length.is_some(), taken.length.is_some()),
        ("target", options.target.is_some(), taken.target.is_some()),
        ("vocabulary", options.vocabulary.is_some(), taken.vocabulary.is_some()),
        ("width", options.width.is_some(), taken.width.is_some()),
        ("layers", options.layers.is_some(), taken.layers.is_some()),
        ("optimizer", options.optimizer.is_some(), taken.optimizer.is_some()),
        ("weight_decay", options.weight_decay.is_some(), taken.weight_decay.is_some()),
        ("learning_rate", options.learning_rate.is_some(), taken.learning_rate.is_some()),
    ];
    fields.into_iter().filter(|&(_, given, taken)| given && !taken).map(|(field, ..)| field).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{NAMES, build};
    use super::*;

    fn expect_same(name: &str, options: &Options) {
        let filled = resolved(name, options).unwrap();
        let (left, right) = (build(name, options).unwrap(), build(name, &filled).unwrap());
        assert_eq!(left.name, right.name);
        assert!(left.nodes == right.nodes && left.tensors == right.tensors, "{name}: {options:?} {filled:?}");
        assert!(left.persistent == right.persistent && left.inputs == right.inputs, "{name}");
        assert_eq!(resolved(name, &filled).unwrap(), filled, "{name}");
    }

    #[test]
    fn every_default_is_what_the_network_is_built_with() {
        for name in NAMES.iter().map(|name| name.replace('N', "26")).chain(["resnet20".to_owned()]) {
            for mode in [Mode::Training, Mode::Inference] {
                let options = Options::new(2).mode(mode);
                expect_same(&name, &options);
                let large = name.contains("inception") || name == "alexnet" || name == "googlenet";
                let image = Some(if large { 320 } else { 96 });
                let adam = options.clone().image(image).optimizer(OptimizerKind::Adam);
                expect_same(&name, &adam);
                expect_same(&name, &options.width(64).learning_rate(0.5));
            }
        }
        assert_eq!(without_effect("lstm", &Options::new(1).image(32).length(4)).unwrap(), ["image"]);
        assert_eq!(without_effect("vgg16", &Options::new(1).image(32).width(8)).unwrap(), ["width"]);
        let inference =
            Options::new(1).mode(Mode::Inference).optimizer(OptimizerKind::Adam).learning_rate(0.1);
        assert_eq!(without_effect("gpt", &inference).unwrap(), ["optimizer", "learning_rate"]);
        assert!(resolved("resnetN", &Options::new(1)).is_err());
        assert!(resolved("resnet7", &Options::new(1)).is_err());
    }
}
