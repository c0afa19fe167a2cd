//! Networks as the command presents them: the table of defaults for the help, and what a network was built with.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use elbowroom::data::Tokenizer;
use elbowroom::engine::kernels;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::graph::{Content, Convolutions, Graph, Mode, OpKind, Precision, Role};
use elbowroom::ir::Bytes;
use elbowroom::network::Source;
use elbowroom::size::BatchSpec;
use elbowroom::tiles::TileChoice;

use crate::args::NetworkArgs;
use crate::printer::{self, Row, row};

/// What `--help` prints below the options: the defaults of every network, one line each.
pub fn defaults() -> String {
    let head = ["Network", "image", "classes", "length", "vocab.", "width", "layers", "optimizer", "rate"];
    let mut rows = vec![head.map(str::to_owned)];
    for name in zoo::NAMES {
        // A pattern has the defaults of the depths that match it.
        let Ok(Options {
            image, classes, length, vocabulary, width, layers, optimizer, learning_rate, ..
        }) = zoo::resolved(&name.replace('N', "26"), &Options::new(1))
        else {
            continue;
        };
        let size = |size: Option<usize>| size.map_or_else(|| "-".to_owned(), |size| size.to_string());
        rows.push([
            (*name).to_owned(),
            size(image),
            size(classes),
            size(length),
            size(vocabulary),
            size(width),
            size(layers),
            optimizer.map_or_else(|| "-".to_owned(), |optimizer| optimizer.name().to_owned()),
            learning_rate.map_or_else(|| "-".to_owned(), |rate| rate.to_string()),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String; 9]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        format!("  {}", cells.collect::<Vec<_>>().join(" "))
    };
    let table = rows.iter().map(line).collect::<Vec<_>>().join("\n");
    format!(
        "Defaults of each network (- where the network has no such option):\n{table}\n\n\
         Below 96 pixels, ResNet, DenseNet and VGG take their CIFAR form (for ResNet\n\
         a 3x3 stem without pooling), and image classifiers have 10 classes. From 96\n\
         pixels on they take their ImageNet form and have 1000 classes. The classifiers\n\
         of VGG and AlexNet take the last feature map as it is, so their size depends on\n\
         the image; it is the published one from 224 to 255 pixels. N stands for a depth;\n\
         ResNets of depth 20, 32, 44, 56, 110 and 1202 have a width of 16."
    )
}

/// Says on standard error which of the given options the network does not take.
pub fn warn_of_options_without_effect(source: &Source, options: &Options) {
    let name = source.name();
    // A wrong name is reported where the network is built.
    let taken = source.resolved(options);
    for field in taken.map(|taken| zoo::not_taken(options, &taken)).unwrap_or_default() {
        let option = field.replace('_', "-");
        let part = if options.mode == Mode::Inference { " in inference" } else { "" };
        let _ =
            writeln!(std::io::stderr(), "warning: --{option} has no effect: {name} has no such option{part}");
    }
}

/// Says on standard error that weights are not cut into tiles in bf16, if their size was given.
pub fn warn_of_tiles_without_effect(args: &NetworkArgs, tiles: TileChoice) {
    if args.precision == Precision::Bf16 && matches!(tiles, TileChoice::AtMost(_)) {
        let _ = writeln!(
            std::io::stderr(),
            "warning: --tiles has no effect: with --precision bf16 no weight is cut into tiles"
        );
    }
}

/// Samples in a batch where the user names no number and no file fixes one.
const BATCH: u32 = 64;

/// The batch that the user named, or that the file of the network fixes.
pub fn batch(args: &NetworkArgs, source: &Source) -> BatchSpec {
    let fixed = || source.batch().and_then(|batch| u32::try_from(batch).ok());
    args.batch.unwrap_or_else(|| BatchSpec::Samples(fixed().unwrap_or(BATCH)))
}

/// Refuses a batch for a trace, which has its own.
pub fn expect_own_batch(path: &Path, batch: Option<BatchSpec>) -> Result<()> {
    match batch {
        Some(BatchSpec::Largest) => bail!(
            "{} is one iteration with the batch that was traced or recorded, and shapes and durations of other batches do not follow from it; \
             --batch max is for networks that can be built, like --model resnet152",
            path.display()
        ),
        Some(BatchSpec::Samples(_)) => {
            bail!(
                "{} has its own batch; --batch is for networks that can be built, like --model resnet152",
                path.display()
            )
        }
        None => Ok(()),
    }
}

/// The network that the user named, in the zoo or in a file.
pub fn source(args: &NetworkArgs) -> Result<Source> {
    let source = Source::open(&args.model)?.precision(args.precision).convolutions(args.convolutions);
    let is_slower = args.precision == Precision::Bf16 && kernels::has_matrix_unit();
    if args.convolutions == Convolutions::Winograd && is_slower {
        let _ = writeln!(
            std::io::stderr(),
            "warning: this processor multiplies bf16 numbers in a matrix unit, which only plain convolutions use: --convolutions plain takes less time"
        );
    }
    Ok(match args.loss {
        None => source,
        Some(loss) if source.is_file() => source.loss(loss),
        Some(_) => {
            let _ = writeln!(
                std::io::stderr(),
                "warning: --loss has no effect: {} has its own loss, and only the network of an ONNX file is given one",
                args.model
            );
            source
        }
    })
}

/// How texts become tokens, as `--tokenizer` says, and the options with the number of tokens that this needs, unless the user chose one.
pub fn tokenized(source: &Source, options: Options, tokenizer: &str) -> Result<(Tokenizer, Options)> {
    if tokenizer == "bytes" {
        return Ok((Tokenizer::default(), options));
    }
    if source.resolved(&options)?.vocabulary.is_none() {
        bail!("--tokenizer is for networks that read text, and {} takes no tokens", source.name());
    }
    let tokenizer = Tokenizer::open(Path::new(tokenizer))?;
    let vocabulary = options.vocabulary.or(Some(tokenizer.vocabulary()));
    Ok((tokenizer, options.vocabulary(vocabulary)))
}

/// What a network was built with: its inputs, classes, optimizer, batch and parameters.
pub fn description(graph: &Graph) -> Vec<Row> {
    let plain = |name: &str, text: String| row(name, text, "");
    let mut rows = vec![plain("network", graph.name.split(' ').next().unwrap_or_default().to_owned())];
    let input = |index: usize| {
        graph.inputs.get(index).map(|input| (input.content, graph.tensors[input.tensor].shape.dims()))
    };
    let first = input(0);
    if let Some((_, [part, ..])) = first {
        let batch = elbowroom::network::samples(graph);
        let parts = if batch == *part { String::new() } else { format!(" in parts of {part}") };
        rows.push(plain("batch", printer::counted(batch as u64, "sample") + &parts));
    }
    match first {
        Some((Content::Real, [_, channels, height, width])) => {
            rows.push(plain("image size", format!("{height} x {width} pixels, {channels} channels")));
            if let Some((Content::Class { classes }, _)) = input(1) {
                rows.push(plain("classes", classes.to_string()));
            }
        }
        Some((Content::Class { classes }, [_, tokens])) => {
            rows.push(plain("sequence", format!("{tokens} tokens, vocabulary of {classes}")));
        }
        Some((_, [_, sample @ ..])) => {
            let numbers: usize = sample.iter().product();
            rows.push(plain("sample", printer::counted(numbers as u64, "number")));
        }
        _ => {}
    }
    if graph.precision() == Precision::Bf16 {
        rows.push(plain("precision", "bf16, weights and sums in f32".to_owned()));
    }
    if graph.convolutions() == Convolutions::Winograd {
        rows.push(plain("arithmetic", "Winograd's convolutions where they save time".to_owned()));
    }
    rows.push(plain("optimizer", optimizer(graph)));
    let weights = graph.persistent.iter().filter(|parameter| parameter.role == Role::Weight);
    let weights = weights.map(|weight| &graph.tensors[weight.begin]);
    let (count, bytes) = weights.fold((0, Bytes::ZERO), |(count, bytes), value| {
        (count + value.shape.len() as u64, bytes + value.bytes())
    });
    rows.push(plain("parameters", format!("{} ({bytes})", printer::grouped(count))));
    rows
}

/// The optimizer with its numbers, as the graph applies it.
fn optimizer(graph: &Graph) -> String {
    let step = graph.nodes.values().find_map(|node| match &node.kind {
        OpKind::SgdStep { sgd, .. } => Some(format!(
            "sgd, learning rate {}, momentum {}, weight decay {}",
            sgd.learning_rate, sgd.momentum, sgd.weight_decay
        )),
        OpKind::AdamStep { adam, .. } => Some(format!(
            "adam, learning rate {}, betas {} and {}, weight decay {}",
            adam.learning_rate, adam.betas[0], adam.betas[1], adam.weight_decay
        )),
        _ => None,
    });
    step.unwrap_or_else(|| "none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_every_network_and_fits_80_columns() {
        let text = defaults();
        for name in zoo::NAMES {
            assert!(text.lines().any(|line| line.trim_start().starts_with(&format!("{name} "))), "{name}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn a_network_says_what_it_was_built_with() {
        let has = |rows: &[Row], name: &str, text: &str| {
            let found = rows.iter().find(|row| row.name == name).map(|row| row.figure.as_str());
            assert_eq!(found, Some(text));
        };
        let rows = description(&zoo::build("resnet18", &Options::new(4)).unwrap());
        has(&rows, "image size", "32 x 32 pixels, 3 channels");
        has(&rows, "classes", "10");
        has(&rows, "batch", "4 samples");
        has(&rows, "optimizer", "sgd, learning rate 0.02, momentum 0.9, weight decay 0.0005");
        has(&rows, "parameters", "11,173,962 (42.63 MiB)");
        let rows = description(&zoo::build("gpt", &Options::new(2)).unwrap());
        has(&rows, "sequence", "128 tokens, vocabulary of 256");
    }
}
