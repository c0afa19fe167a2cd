//! The options of `elbowroom evaluate` and `elbowroom predict`.

use std::path::PathBuf;

use clap::Args;
use elbowroom::size::MemorySpec;

use super::{NetworkArgs, PlannerArgs};
use crate::networks;

/// What both commands need.
#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// The weights: a checkpoint of `train --save`, or a safetensors file of `train --save-weights` or of PyTorch [default: those of an ONNX
    /// file]
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// The samples: a folder with the test files of CIFAR-10 or MNIST (its training files, if it holds no test files), a folder with a folder of
    /// JPEG or PNG images for each class, a table of PATH,LABEL lines, or a text file
    #[arg(long, value_name = "PATH")]
    pub data: PathBuf,
    /// How texts become tokens, as for `train`: bytes, or a tokenizer.json
    #[arg(long, default_value = "bytes", value_name = "bytes|FILE")]
    pub tokenizer: String,
    /// The limit on the arena: bytes (600MiB, 1.5GiB), a share of the unconstrained peak (70%), or min, the smallest limit for which a plan is
    /// found. A pass without gradients has few tensors that could be offloaded, so that less than the whole peak is not always possible
    #[arg(long, default_value = "100%", value_name = "SIZE")]
    pub memory: MemorySpec,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Where offloaded tensors go: disk, memory or a folder, as for `train`
    #[arg(long, default_value = "disk", value_name = "disk|memory|FOLDER", help_heading = "Host")]
    pub host: String,
    #[command(flatten)]
    pub planner: PlannerArgs,
}

/// `elbowroom evaluate`
#[derive(Debug, Args)]
#[command(after_help = EVALUATE_EXAMPLES, after_long_help = format!("{EVALUATE_EXAMPLES}\n\n{}", networks::defaults()))]
pub struct EvaluateArgs {
    #[command(flatten)]
    pub forward: ForwardArgs,
    /// Print one JSON object instead of text
    #[arg(long, help_heading = "Files and output")]
    pub json: bool,
}

const EVALUATE_EXAMPLES: &str = "Examples:
  elbowroom evaluate --model resnet18 --weights r18.safetensors --data cifar10/
      Prints loss and accuracy on test_batch.bin.
  elbowroom evaluate --model gpt --weights gpt.safetensors --data held-out.txt --memory 100MiB --json";

/// `elbowroom predict`
#[derive(Debug, Args)]
#[command(after_help = PREDICT_EXAMPLES, after_long_help = format!("{PREDICT_EXAMPLES}\n\n{}", networks::defaults()))]
pub struct PredictArgs {
    #[command(flatten)]
    pub forward: ForwardArgs,
    /// Where to write one line for each sample [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

const PREDICT_EXAMPLES: &str = "Examples:
  elbowroom predict --model resnet18 --weights r18.safetensors --data cifar10/ -o classes.csv
      Writes sample,class,probability: the most probable class of each image.
  elbowroom predict --model gpt --weights gpt.safetensors --data held-out.txt
      Writes sample,token,probability,text: for each window of the text the most probable next token, and the text of the most probable
      token at every position.";
