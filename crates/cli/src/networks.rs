//! Networks as the command presents them: the table of defaults for the help, and what a network was built with.

use elbowroom::graph::zoo::{self, Options};
use elbowroom::graph::{Content, Graph, OpKind, Role};

/// What `--help` prints below the options: the defaults of every network, one line each.
pub fn defaults() -> String {
    let head =
        ["Network", "image", "classes", "length", "vocabulary", "width", "layers", "optimizer", "rate"];
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
         Below 96 pixels, ResNet, DenseNet and VGG take their CIFAR form (for ResNet a 3x3 stem\n\
         without pooling) and image classifiers have 10 classes; from 96 pixels on they take\n\
         their ImageNet form and have 1000 classes. N stands for a depth: resnet20, resnet32,\n\
         resnet44, resnet56, resnet110 and resnet1202 have a width of 16."
    )
}

/// What a network was built with, in name and value: its inputs, classes, optimizer, batch and parameters.
pub fn description(graph: &Graph) -> Vec<(&'static str, String)> {
    let network = graph.name.split(' ').next().unwrap_or_default().to_owned();
    let mut rows = vec![("network", network)];
    let shape = |index: usize| {
        graph.inputs.get(index).map(|input| (input.content, graph.values[input.value].shape.dims().to_vec()))
    };
    let first = shape(0);
    if let Some((_, dims)) = &first {
        rows.push(("batch", format!("{} samples", dims.first().copied().unwrap_or(1))));
    }
    let labels = shape(1);
    match &first {
        Some((Content::Real, dims)) if dims.len() == 4 => {
            rows.push(("image size", format!("{} x {} pixels, {} channels", dims[2], dims[3], dims[1])));
            if let Some((Content::Class { classes }, _)) = labels {
                rows.push(("classes", classes.to_string()));
            }
        }
        Some((Content::Class { classes }, dims)) => {
            let tokens = dims.get(1).copied().unwrap_or(1);
            rows.push(("sequence", format!("{tokens} tokens, vocabulary of {classes}")));
        }
        Some((_, dims)) => rows.push(("sample", format!("{} numbers", dims[1..].iter().product::<usize>()))),
        None => {}
    }
    rows.push(("optimizer", optimizer(graph)));
    let weights = graph.persistent.iter().filter(|parameter| parameter.role == Role::Weight);
    let (count, bytes) = weights
        .map(|weight| &graph.values[weight.begin])
        .fold((0, 0), |(n, b), value| (n + value.shape.len(), b + value.bytes().get()));
    rows.push(("parameters", format!("{} ({})", grouped(count), elbowroom::ir::Bytes(bytes))));
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

/// A count with a comma between groups of three digits: `11,173,962`.
pub fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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
        assert!(text.lines().all(|line| line.chars().count() <= 90), "{text}");
    }

    #[test]
    fn a_network_says_what_it_was_built_with() {
        let rows = description(&zoo::build("resnet18", &Options::new(4)).unwrap());
        let find = |name: &str| rows.iter().find(|row| row.0 == name).map(|row| row.1.as_str());
        assert_eq!(find("image size"), Some("32 x 32 pixels, 3 channels"));
        assert_eq!((find("classes"), find("batch")), (Some("10"), Some("4 samples")));
        assert_eq!(find("optimizer"), Some("sgd, learning rate 0.02, momentum 0.9, weight decay 0.0005"));
        assert_eq!(find("parameters"), Some("11,173,962 (42.63 MiB)"));
        let rows = description(&zoo::build("gpt", &Options::new(2)).unwrap());
        assert!(rows.contains(&("sequence", "128 tokens, vocabulary of 256".to_owned())), "{rows:?}");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(999), "999");
    }
}
