//! The options of `elbowroom train`.

use std::path::PathBuf;

use clap::Args;
use elbowroom::ir::Bytes;
use elbowroom::machine::Rate;
use elbowroom::size::{BatchSpec, MemorySpec};
use elbowroom::tiles::TileChoice;
use elbowroom::train::Schedule;

use super::{NetworkArgs, PlannerArgs};
use crate::networks;
use crate::values::{parse_norm, parse_part};

/// `elbowroom train`
#[derive(Debug, Args)]
#[command(after_help = TRAIN_EXAMPLES, after_long_help = format!("{TRAIN_EXAMPLES}\n\n{}", networks::defaults()))]
pub struct TrainArgs {
    /// The limit on the arena: bytes (600MiB, 1.5GiB), a share of the unconstrained peak (70%), or min, the smallest limit for which a plan is
    /// found [default: 50%, or 100% with --forward-only]
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "50%",
        default_value_if("forward_only", "true", "100%"),
        hide_default_value = true
    )]
    pub memory: MemorySpec,
    /// Number of training iterations; with --resume, more than the checkpoint has
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: u64,
    /// Number of passes over the data instead; with --resume, those of the checkpoint included
    #[arg(long, value_name = "N", conflicts_with = "iterations", value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: Option<u64>,
    /// A folder with the files of CIFAR-10 (binary version) or MNIST, a folder with a folder of JPEG or PNG images for each class, a table (.csv)
    /// of PATH,LABEL lines, or for language models a text file or a folder of .txt files [default: synthetic data]
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// How texts become tokens: bytes, or a tokenizer.json of Hugging Face with byte pairs (GPT-2, Llama 3). With a file, --vocabulary is by
    /// default what the tokenizer needs
    #[arg(long, default_value = "bytes", value_name = "bytes|FILE")]
    pub tokenizer: String,
    /// How the learning rate changes: constant, cosine:WARMUP (rises over WARMUP iterations, then falls along half a cosine to zero at the end of
    /// the training) or steps:EVERY:FACTOR (times FACTOR, 0.1 by default, after every EVERY iterations) [default: constant, or that of the
    /// checkpoint with --resume]
    #[arg(long, value_name = "SCHEDULE", conflicts_with = "forward_only")]
    pub schedule: Option<Schedule>,
    /// Iterations that the schedule spans, those before --resume included [default: the length of the training, or that of the checkpoint]
    #[arg(long, value_name = "N", conflicts_with = "epochs", value_parser = clap::value_parser!(u64).range(1..))]
    pub schedule_length: Option<u64>,
    /// Multiply the gradients by a common factor where their global norm is larger than this; all gradients must exist before the
    /// first update then
    #[arg(long, value_name = "NORM", conflicts_with = "forward_only", value_parser = parse_norm)]
    pub clip_norm: Option<f32>,
    /// Compute each batch in parts of this many samples and add up their gradients; max is the largest part for which a plan is found (needs a
    /// limit in bytes)
    #[arg(long, value_name = "SAMPLES|max", conflicts_with = "forward_only")]
    pub micro_batch: Option<BatchSpec>,
    /// Held-out data, on which loss and accuracy are computed under the same limit after every epoch (with --epochs) and at the end: a folder
    /// with the test files of CIFAR-10 or MNIST, a file of CIFAR-10's form, images as for --data, or a text file
    #[arg(long, value_name = "PATH", conflicts_with = "forward_only")]
    pub eval_data: Option<PathBuf>,
    /// Hold this share of the samples out of the training and evaluate on them, like 10%; the seed decides which
    #[arg(
        long, value_name = "SHARE", conflicts_with_all = ["eval_data", "forward_only"], requires = "data",
        value_parser = parse_part
    )]
    pub val_split: Option<f64>,
    /// Mirror half of the images in training, left to right
    #[arg(long)]
    pub flip: bool,
    /// Shift the images in training by up to this many pixels in every direction, as if they were padded and cropped
    #[arg(long, value_name = "PIXELS", default_value_t = 0, hide_default_value = true)]
    pub crop: u16,
    /// Iterations from one evaluation to the next; another follows the last iteration. Without --eval-data, on the test files in the folder
    /// of --data
    #[arg(long, value_name = "N", conflicts_with = "forward_only", value_parser = clap::value_parser!(u64).range(1..))]
    pub eval_every: Option<u64>,
    /// Samples in an epoch; the last batch of an epoch holds the remainder [default: all samples, whole batches only]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub samples: Option<u64>,
    /// Longest sentence of seq2seq, whose batches vary in length; with --length all sentences have that length [default: 50, or 100 with
    /// --forward-only]
    #[arg(long, value_name = "WORDS", conflicts_with = "length", value_parser = clap::value_parser!(u32).range(1..))]
    pub longest: Option<u32>,
    /// Also run the same iterations without a limit, and compare losses and parameters bit by bit
    #[arg(long)]
    pub verify: bool,
    /// Use dynamic execution for all iterations: no plan; tensors are evicted, offloaded and recomputed when bytes are missing
    #[arg(long, alias = "reactive")]
    pub dynamic: bool,
    /// Also use algorithms for convolutions that round differently (Winograd), where they are faster [default: bit-exact algorithms only]
    #[arg(long, alias = "allow-other-bits")]
    pub allow_numeric_changes: bool,
    /// Which weights may be cut into tiles, each updated right behind its gradient: auto (large ones, if the limit is too small for whole ones),
    /// never, or the size of a tile like 16MiB (every weight that is larger and can be cut). Results are the same to the bit
    #[arg(long, default_value_t = TileChoice::Auto, value_name = "auto|never|SIZE")]
    pub tiles: TileChoice,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Where offloaded tensors go: disk, a file in the folder for temporary files or in /var/tmp, whichever lies on a disk (if neither does,
    /// nothing is offloaded); a folder that holds the file; or memory of the process, which adds to the limit
    #[arg(long, default_value = "disk", value_name = "disk|memory|FOLDER", help_heading = "Host")]
    pub host: String,
    /// Bytes that may be reserved for offloaded tensors on the host, like 8GiB [default: 64GiB, or the free space of the folder]
    #[arg(long, value_name = "SIZE", help_heading = "Host")]
    pub host_memory: Option<Bytes>,
    /// Slow copies down to this rate in each direction, like 2GB/s [default: as fast as the host copies]
    #[arg(long, value_name = "RATE", help_heading = "Host")]
    pub host_rate: Option<Rate>,
    #[command(flatten)]
    pub planner: PlannerArgs,
    /// Write a checkpoint to this file after the last iteration, and every --save-every iterations; also if a signal ends the training
    #[arg(long, value_name = "FILE", conflicts_with = "forward_only", help_heading = "Files and output")]
    pub save: Option<PathBuf>,
    /// Iterations from one checkpoint to the next
    #[arg(
        long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..),
        help_heading = "Files and output"
    )]
    pub save_every: u64,
    /// Continue from this checkpoint
    #[arg(long, value_name = "FILE", help_heading = "Files and output")]
    pub resume: Option<PathBuf>,
    /// Begin with the weights in this safetensors file, ours or PyTorch's (torchvision's and Hugging Face's networks that the zoo has, like ResNet, ViT,
    /// GPT-2); with another number of classes the last layer begins as without it
    #[arg(long, value_name = "FILE", conflicts_with = "resume", help_heading = "Files and output")]
    pub weights: Option<PathBuf>,
    /// Write the weights after the last iteration so that PyTorch's module loads them
    #[arg(long, value_name = "FILE", conflicts_with = "forward_only", help_heading = "Files and output")]
    pub save_weights: Option<PathBuf>,
    /// Draw the losses as an SVG file
    #[arg(long, value_name = "FILE", conflicts_with = "forward_only", help_heading = "Files and output")]
    pub plot: Option<PathBuf>,
    /// Write the last planned iteration as Chrome trace events (JSON), predicted and measured, which Perfetto and chrome://tracing show
    #[arg(long, value_name = "FILE", help_heading = "Files and output")]
    pub timeline: Option<PathBuf>,
    /// Write the finished run, its last planned iteration and its plan to this file, which `report` shows as a page and `why` explains
    #[arg(long, value_name = "FILE", help_heading = "Files and output")]
    pub report: Option<PathBuf>,
    /// Serve a page on this port of 127.0.0.1 while the training runs: loss, memory, streams, time left; 0 takes any free port
    #[arg(long, value_name = "PORT", help_heading = "Files and output")]
    pub watch: Option<u16>,
    /// Append every iteration and every evaluation to this file, one JSON object a line
    #[arg(long, value_name = "FILE", help_heading = "Files and output")]
    pub log: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long, help_heading = "Files and output")]
    pub json: bool,
}

const TRAIN_EXAMPLES: &str = "Examples:
  elbowroom train --iterations 20 --memory 40%
  elbowroom train --data cifar10/ --epochs 6 --eval-data cifar10/ --save r18.safetensors
      Trains ResNet-18 on CIFAR-10 and evaluates it on test_batch.bin after every epoch. With --resume r18.safetensors in addition, the same
      command continues after an interruption.
  elbowroom train --model gpt --data book.txt --iterations 2000 --schedule cosine:100 --clip-norm 1 --weight-decay 0.1
      Trains a language model with a warm-up of 100 iterations.
  elbowroom train --model mobilenet_v2.onnx --batch 8 --data flowers/ --memory 50%
      Trains the network of an ONNX file from the weights in it.
  elbowroom train --model gpt --data book.txt --tokenizer tokenizer.json --length 256 --save-weights gpt.safetensors
      Trains on byte pairs in place of bytes.
  elbowroom train --model resnet50 --batch 256 --micro-batch max --memory 600MiB
      Trains on batches of 256 in parts that fit in 600 MiB.
  elbowroom train --model resnet18 --image 224 --classes 5 --weights resnet18.safetensors --save-weights tuned.safetensors
      Begins with torchvision's weights and writes what torchvision's resnet18(num_classes=5) loads.
  elbowroom train --model resnet20 --report run.json && elbowroom report run.json --open
      Shows the finished run in the browser: losses, memory and streams, predicted and measured.
  elbowroom train --iterations 2000 --watch 8080
      Shows the training at http://127.0.0.1:8080/ while it runs.
  elbowroom train --model resnet18 --image 224 --batch 16 --memory 40% --precision bf16
      Stores activations in bf16, in half as many bytes; weights and sums stay f32.
  elbowroom train --model lstm --memory min --verify
  elbowroom train --model vgg16 --batch max --memory 600MiB --plot loss.svg
  elbowroom train --model gpt --forward-only --resume gpt.safetensors
  elbowroom train --model resnet50 --batch 16 --memory 300MiB --host /tmp --save r50.safetensors";
