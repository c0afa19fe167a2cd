//! The command line as it is typed. [`settings`](crate::settings) turns it into what the library takes.

mod forward;
mod train;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
#[cfg(feature = "dqn")]
use elbowroom::dqn::settings::Settings;
use elbowroom::graph::zoo::OptimizerKind;
use elbowroom::graph::{Convolutions, Precision};
use elbowroom::ir::Bytes;
use elbowroom::machine::LinkSpec;
use elbowroom::onnx::Loss;
use elbowroom::pipeline::Evaluations;
use elbowroom::size::{BatchSpec, MemoryRange, MemorySpec};
use elbowroom::tiles::TileChoice;

use crate::networks;
use crate::values::{
    BankSpec, NetworkName, PackerName, machine_name, parse_duration, parse_percent, planner_name,
};

pub use forward::{EvaluateArgs, ForwardArgs, PredictArgs};
pub use train::TrainArgs;

/// Train neural networks in the memory you have.
///
/// You name a limit in bytes. Elbowroom traces one training iteration, decides which tensors to keep, offload or recompute, assigns every
/// buffer an offset in one arena, proves the plan legal and trains under it. Results are bit-exact, and the arena never exceeds the limit.
#[derive(Debug, Parser)]
#[command(name = "elbowroom", version, max_term_width = 110, propagate_version = true)]
#[command(after_help = "Examples:
  elbowroom train
      Trains ResNet-18 on synthetic data in half of its unconstrained peak.
  elbowroom train --model vgg16 --batch 64 --memory 600MiB --data cifar10/
      Trains VGG-16 on CIFAR-10 in 600 MiB.
  elbowroom trace --model resnet50 --image 224 --batch 32 --machine v100 -o r50.trace
  elbowroom plan r50.trace
      Prints the unconstrained peak and the smallest limit for which a plan is found.
  elbowroom plan r50.trace --memory 1.5GiB -o r50.plan
  elbowroom check r50.trace r50.plan --memory 1.5GiB

Exit status: 0 success, 1 a negative answer (infeasible, illegal, not equal, diverged), 2 an error, 128 + n after the signal of
number n: Ctrl-C, SIGTERM and SIGHUP end planning and training cleanly, and what was found until then is kept.")]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// One command for each stage of the pipeline.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a network under a memory limit: trace, plan, check and run
    Train(Box<TrainArgs>),
    /// Compute loss and accuracy of trained weights on a data set, under a memory limit
    Evaluate(Box<EvaluateArgs>),
    /// Write the most probable class of every sample of a data set, under a memory limit
    Predict(Box<PredictArgs>),
    /// Write a trace of one training iteration of a network
    Trace(TraceArgs),
    /// Plan a trace under a memory limit
    Plan(PlanArgs),
    /// Prove that a plan is legal for a trace, or name the rules that it breaks
    Check(CheckArgs),
    /// Predict the iteration time and the traffic of a plan
    Simulate(SimulateArgs),
    /// Explain the peak of memory: what is alive there, and what would lower it
    Why(WhyArgs),
    /// Write a page for the browser: the arena over time, the streams, and why the peak is there
    Report(ReportArgs),
    /// Plan a trace with several planners under several limits, side by side
    Compare(CompareArgs),
    /// Place buffers with known lifetimes in one arena
    Pack(PackArgs),
    /// Compute the tables and figures of five papers again, beside the printed figures
    Reproduce(ReproduceArgs),
}

/// Which network, how large.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Network (a table of all defaults is in --help)")]
pub struct NetworkArgs {
    /// The network. N stands for a depth, as in resnet56. Or a file NAME.onnx with the forward pass of a network, whose weights it begins with
    #[arg(long, default_value = "resnet18", value_parser = NetworkName)]
    pub model: String,
    /// What the network of an ONNX file learns: cross-entropy (its output is logits, and there are labels) or mse (targets of the extents of its
    /// output) [default: cross-entropy; other networks have their own]
    #[arg(long, value_name = "cross-entropy|mse")]
    pub loss: Option<Loss>,
    /// How activations and their gradients are stored: f32, or bf16, in half as many bytes. Weights, their gradients, the optimizer's state and sums
    /// are f32 in both; with bf16, products take weights as their nearest bf16 numbers
    #[arg(long, default_value = "f32", value_name = "f32|bf16")]
    pub precision: Precision,
    /// The arithmetic of convolutions: plain, or winograd, which computes those of 3×3 windows at a stride of one with fewer multiplications where
    /// that saves time. It rounds differently, in every run and within every limit alike
    #[arg(long, default_value = "plain", value_name = "plain|winograd")]
    pub convolutions: Convolutions,
    /// Samples in a batch; `train` and `plan` also take max, the largest batch for which a plan is found [default: 64, or the batch that an ONNX file
    /// fixes]
    #[arg(long, value_name = "SAMPLES|max")]
    pub batch: Option<BatchSpec>,
    /// Run the forward part only: no gradients, no updates, no dropout, normalization by running statistics
    #[arg(long)]
    pub forward_only: bool,
    /// Height and width of the images in pixels [default: the network's own, 32 for ResNet, VGG and DenseNet]
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub image: Option<u32>,
    /// Number of classes; of kmeans, number of clusters [default: 10 below 96 pixels, 1000 from there on, 2 for unet, 100 for kmeans]
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..))]
    pub classes: Option<u32>,
    /// Tokens in a sequence [default: the network's own, 128 for gpt, 35 for lstm]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub length: Option<u32>,
    /// Number of different tokens [default: 256, all bytes; 50257 for gpt2]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub vocabulary: Option<u32>,
    /// Columns of the hidden state (lstm, seq2seq, gpt) or of a point (kmeans); channels of the first stage (ResNet, unet) [default: the
    /// network's own, 64 for resnet18, 256 for gpt]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub width: Option<u32>,
    /// Layers of a language model [default: 2 for lstm and seq2seq, 4 for gpt, 12 for gpt2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub layers: Option<u32>,
    /// The optimizer: sgd (momentum 0.9) or adam [default: sgd for images, adam for tokens]
    #[arg(long, value_name = "sgd|adam")]
    pub optimizer: Option<OptimizerKind>,
    /// The optimizer's step size [default: the network's own, 0.02 for ResNet; with another optimizer than the network's own, 0.01 for sgd and
    /// 0.001 for adam]
    #[arg(long, value_name = "RATE")]
    pub learning_rate: Option<f32>,
    /// Weight decay [default: 0.0005 for sgd, 0 for adam]
    #[arg(long, value_name = "DECAY")]
    pub weight_decay: Option<f32>,
}

/// How to plan.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Planning")]
pub struct PlannerArgs {
    /// The planner: decides which tensors to keep, offload or recompute
    #[arg(long, value_parser = planner_name(), default_value = elbowroom::registry::DEFAULT_PLANNER)]
    pub planner: String,
    /// The packer: assigns every buffer an offset in the arena
    #[arg(long, value_parser = PackerName, default_value = elbowroom::registry::DEFAULT_PACKER)]
    pub packer: String,
    #[command(flatten)]
    pub freedom: FreedomArgs,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub options: PlannerOptions,
    #[command(flatten)]
    pub network: DqnArgs,
}

/// Options that only some planners take.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Planning")]
pub struct PlannerOptions {
    /// Smallest tensor that doa, aoa, wdoa, swdoa, autoswap, bo and bo-margin offload [default: 1MiB, or a 256th of the live memory if that is less]
    #[arg(long, value_name = "SIZE")]
    pub swap_least: Option<Bytes>,
    /// Which tensors the planner marked recomputes: lines like `kind batch-norm 1`
    ///
    /// A line is `tensor NAME COUNT`, `op NAME COUNT` or `kind KIND COUNT`; `*` stands for any characters. COUNT is the mirror count of Chen et
    /// al.: 0 keeps, 1 recomputes once, more recomputes recursively. Of several lines that name a tensor, the last counts.
    #[arg(long, value_name = "FILE")]
    pub marks: Option<PathBuf>,
}

/// How `--planner dqn` learns.
#[derive(Debug, Clone, Default, Args)]
pub struct DqnArgs {
    /// Settings of the planner dqn, like episodes=100,hidden=32 (a wrong key lists them all)
    #[cfg(feature = "dqn")]
    #[arg(long = "dqn", value_name = "KEY=VALUE,...", value_parser = str::parse::<Settings>, help_heading = DQN)]
    pub settings: Option<Settings>,
    /// Start from the network in this file, which plan --dqn-save wrote
    #[cfg(feature = "dqn")]
    #[arg(long = "dqn-from", value_name = "FILE", help_heading = DQN)]
    pub from: Option<PathBuf>,
}

/// What `plan --planner dqn` writes in addition to the plan.
#[derive(Debug, Clone, Default, Args)]
pub struct DqnFiles {
    /// Write the trained network to this file, as safetensors
    #[cfg(feature = "dqn")]
    #[arg(long = "dqn-save", value_name = "FILE", help_heading = DQN)]
    pub save: Option<PathBuf>,
    /// Write every episode of the training to this file, as comma-separated values: those of every search, numbered, where the pipeline made
    /// several
    #[cfg(feature = "dqn")]
    #[arg(long = "dqn-curve", value_name = "FILE", help_heading = DQN)]
    pub curve: Option<PathBuf>,
}

/// The heading of the options that only the planner dqn reads.
#[cfg(feature = "dqn")]
const DQN: &str = "Planner dqn";

/// What plans may do.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Planning")]
pub struct FreedomArgs {
    /// Offload nothing to the host
    #[arg(long)]
    pub no_offload: bool,
    /// Recompute nothing
    #[arg(long)]
    pub no_recompute: bool,
    /// Let the planner change the order of ops; every op still reads the same values
    ///
    /// `auto` searches the trace's order and other orders, each with all of --evaluations or half of --time, and keeps the better plan: with
    /// the same number of evaluations the plan is never worse than without this option.
    #[arg(long)]
    pub reorder: bool,
}

/// How long to search.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Search")]
pub struct SearchArgs {
    /// Time budget, like 500ms, 10s or 2m: of all of `plan`, and of each search of the other commands [default: 10s, or none with --evaluations; plan
    /// --batch max takes 1m in addition for the batch]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub time: Option<Duration>,
    /// Evaluation budget instead of a time budget: reproducible with the same seed on any number of threads
    ///
    /// With --time as well, whichever ends first ends the search.
    ///
    /// A list has one number for each round of the pipeline. `plan` prints the list that reproduces a plan made within a time budget. In it, /N is
    /// where the clock stopped the packer, +N how many searches followed the rounds, and ~N the budget of each of these. N@BYTES is a short search
    /// for that limit, whose plan the search for the smallest limit found. N-N-N are the rounds of `auto` within a time budget, each of which
    /// continues from those before it.
    #[arg(long, value_name = "N[,N...]")]
    pub evaluations: Option<Evaluations>,
    /// Seed of all random numbers [default: 0, or that of the checkpoint with --resume]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Number of threads [default: one for each core]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
}

/// For which hardware.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Machine")]
pub struct MachineArgs {
    /// The machine to plan for [default: the machine of the trace, else cpu]
    #[arg(long, value_name = "NAME", value_parser = machine_name())]
    pub machine: Option<String>,
    /// Estimate durations from the data sheet of --machine, in single precision, even where the trace states its own
    #[arg(long, requires = "machine")]
    pub roofline: bool,
    /// The link to the host [default: the machine's own]
    ///
    /// RATE (12.2GB/s) is a link that copies in both directions at once, shared:RATE one that copies in one direction at a time. The name of a
    /// machine, like v100, means the link of that machine.
    #[arg(long, value_name = "[shared:]RATE|MACHINE")]
    pub link: Option<LinkSpec>,
    /// Alignment of every buffer in bytes, a power of two [default: the machine's own, 64 for cpu, 256 for the GPUs]
    #[arg(long, value_name = "BYTES")]
    pub align: Option<Bytes>,
}

/// Whether plans may evict the batch because the host can provide it again.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Inputs")]
pub struct InputArgs {
    /// Run the ops that provide the batch once: it may be offloaded, but not evicted and provided again [default for recorded and captured
    /// iterations, whose programs made the batch outside of the device]
    #[arg(long)]
    pub hold_inputs: bool,
    /// Let the ops that provide the batch be recomputed, for what they cost [default for traces of --model, whose runs copy the batch from the host]
    #[arg(long, conflicts_with = "hold_inputs")]
    pub remake_inputs: bool,
}

/// How files of other programs are read.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Import")]
pub struct ImportArgs {
    /// Read measured graphs in the units of the published data: KiB and 1/100 ms, without workspaces
    #[arg(long, requires = "import")]
    pub published_units: bool,
    /// Let elementwise ops overwrite an input at its last use, even where the recorded program did not
    #[arg(long, requires = "import")]
    pub inplace: bool,
}

/// `elbowroom trace`
#[derive(Debug, Clone, Args)]
#[command(after_help = TRACE_EXAMPLES, after_long_help = format!("{TRACE_EXAMPLES}\n\n{}", networks::defaults()))]
pub struct TraceArgs {
    /// Where to write the trace [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write the trace as JSON instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Convert an iteration that another program recorded, instead of tracing a network
    ///
    /// The kind of file is detected from its content: a chain profile, a recorded op trace, a captured PyTorch trace (joint or eager), a
    /// measured graph, a Checkmate or Chainer graph, or a PyTorch memory snapshot. A file NAME.onnx is the network of --model NAME.onnx
    #[arg(long, value_name = "FILE", conflicts_with = "model", help_heading = "Import")]
    pub import: Option<PathBuf>,
    /// Cut tensors that do not outlive the iteration into pieces of at most this size, which planners can offload one by one
    ///
    /// Such a trace is for `plan`, `compare` and `simulate`: the pieces of a tensor have no common offset, so that no training can run the plan.
    #[arg(long, value_name = "SIZE")]
    pub pieces: Option<Bytes>,
    #[command(flatten)]
    pub importing: ImportArgs,
    #[command(flatten)]
    pub inputs: InputArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

const TRACE_EXAMPLES: &str = "Examples:
  elbowroom trace --model resnet50 --image 224 --batch 32 --machine v100 -o r50.trace
  elbowroom trace --import snapshot.jsonl.gz -o captured.trace
  elbowroom trace --import mobilenet_v2.onnx -o mobilenet.trace
  elbowroom trace --model resnet50 --image 224 --pieces 4MiB -o pieces.trace
      Then `plan pieces.trace --planner eager` offloads the first bytes, the last activation in part.";

/// `elbowroom plan`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom plan r50.trace
      Prints the unconstrained peak and the smallest limit for which a plan is found.
  elbowroom plan r50.trace --memory 1.5GiB -o r50.plan
  elbowroom plan r50.trace --memory 40% --planner greedy --link shared:12.2GB/s --no-recompute
  elbowroom plan r50.trace --memory 30% --explain
      Also lists which tensors are offloaded or evicted, what that saves and what it costs.
  elbowroom plan --model resnet152 --image 224 --batch max --memory 24GiB --machine a100
      Finds the largest batch for which a plan is found, for a machine that need not be here.")]
pub struct PlanArgs {
    /// The trace, or a file that `trace --import` reads; or a network instead, by --model
    #[arg(
        required_unless_present = "model",
        conflicts_with_all = [
            "model", "loss", "forward_only", "image", "classes", "length", "vocabulary", "width", "layers", "optimizer", "learning_rate", "weight_decay",
        ]
    )]
    pub trace: Option<PathBuf>,
    /// The limit on the arena: bytes (600MiB), a share of the unconstrained peak (70%), or min, the smallest limit for which a plan is found
    ///
    /// Without a limit nothing is planned; the command prints the unconstrained peak and the smallest limit for which a plan is found.
    #[arg(long, value_name = "SIZE", conflicts_with = "live_limit")]
    pub memory: Option<MemorySpec>,
    /// Limit live memory instead of the arena and assign no offsets, to compare with published results that leave placement out
    ///
    /// There is then no plan that could be written, drawn or run.
    #[arg(long, alias = "load-limit", value_name = "SIZE")]
    pub live_limit: Option<MemorySpec>,
    /// Where to write the plan [default: only the report is printed]
    #[arg(short, long, value_name = "FILE", conflicts_with = "live_limit", requires = "memory")]
    pub output: Option<PathBuf>,
    /// Which weights of --model may be cut into tiles, as `train` cuts them: auto, never, or the size of a tile like 16MiB. A plan file is for a
    /// trace, whose weights are whole [default: auto, or never with --output]
    #[arg(long, value_name = "auto|never|SIZE", conflicts_with_all = ["trace", "output"])]
    pub tiles: Option<TileChoice>,
    /// List which tensors are offloaded or evicted, with what that saves (bytes x time) and costs, largest saving first
    ///
    /// The text output shows the first 20; --json shows all.
    #[arg(long)]
    pub explain: bool,
    /// Obey the decisions in this file, one a line: keep PATTERN, never-recompute PATTERN or host PATTERN
    ///
    /// `keep` leaves tensors on the device from when they are made to their last use, `never-recompute` lets ops run once, and `host` leaves
    /// persistent tensors on the host between iterations. Patterns are names of tensors, ops and modules with * and ?; `never-recompute` also takes
    /// kinds of ops. --explain reports what each line covers.
    #[arg(long, value_name = "FILE")]
    pub pins: Option<PathBuf>,
    /// Draw the plan as an SVG file: buffers in the arena over time, and the three streams
    #[arg(long, value_name = "FILE", conflicts_with = "live_limit", requires = "memory")]
    pub svg: Option<PathBuf>,
    /// Write the predicted iteration as Chrome trace events (JSON), which Perfetto and chrome://tracing show
    #[arg(long, value_name = "FILE", conflicts_with = "live_limit", requires = "memory")]
    pub timeline: Option<PathBuf>,
    /// Write the plan as a memory snapshot of PyTorch (pickle), which memory_viz shows
    #[arg(long, value_name = "FILE", conflicts_with = "live_limit", requires = "memory")]
    pub snapshot: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub inputs: InputArgs,
    #[command(flatten)]
    pub planner: PlannerArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub learned: DqnFiles,
}

/// `elbowroom check`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  elbowroom check r50.trace r50.plan
  elbowroom check r50.trace r50.plan --memory 1.5GiB
      Also proves that the plan fits into 1.5 GiB, whatever limit its file states.")]
pub struct CheckArgs {
    /// The trace
    pub trace: PathBuf,
    /// The plan
    pub plan: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub inputs: InputArgs,
    #[command(flatten)]
    pub judge: JudgeArgs,
}

/// By what a plan is judged. Without an option, the machine of the trace decides; the plan has to keep to its own machine as well.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Machine of the proof")]
pub struct JudgeArgs {
    /// The machine on which the plan has to be legal [default: the machine of the trace, else that of the plan]
    #[arg(long, value_name = "NAME", value_parser = machine_name())]
    pub machine: Option<String>,
    /// Bytes into which the arena has to fit: a size like 600MiB, or a share of the unconstrained peak like 60% [default: the memory of the machine]
    #[arg(long, value_name = "LIMIT")]
    pub memory: Option<MemorySpec>,
    /// Alignment of every buffer in bytes, a power of two [default: that of the machine]
    #[arg(long, value_name = "BYTES")]
    pub align: Option<Bytes>,
    /// Bytes into which all host copies have to fit, like 8GiB [default: the host memory of the machine]
    #[arg(long, value_name = "SIZE")]
    pub host_memory: Option<Bytes>,
}

/// `elbowroom simulate`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom simulate r50.trace r50.plan
  elbowroom simulate r50.trace r50.plan --machine a100     the same plan on another machine")]
pub struct SimulateArgs {
    /// The trace
    pub trace: PathBuf,
    /// The plan
    pub plan: PathBuf,
    /// List which tensors are offloaded or evicted, with what that saves (bytes x time) and costs, largest saving first
    ///
    /// The text output shows the first 20; --json shows all.
    #[arg(long)]
    pub explain: bool,
    /// Write the predicted iteration as Chrome trace events (JSON), which Perfetto and chrome://tracing show
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
    /// Write the plan as a memory snapshot of PyTorch (pickle), which memory_viz shows
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub inputs: InputArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// `elbowroom why`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom why r50.trace                   the iteration without a limit
  elbowroom why r50.trace r50.plan          the peak of a plan
  elbowroom why snapshot.pickle             what torch.cuda.memory._dump_snapshot wrote
  elbowroom why r50.trace --machine a100 --json")]
pub struct WhyArgs {
    #[command(flatten)]
    pub peak: PeakArgs,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `elbowroom report`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom report r50.trace r50.plan -o r50.html --open
  elbowroom report snapshot.pickle -o snapshot.html     what torch.cuda.memory._dump_snapshot wrote
  elbowroom report placed.csv -o placed.html            what elbowroom pack -o placed.csv wrote
  elbowroom report run.json -o run.html                 what elbowroom train --report run.json wrote")]
pub struct ReportArgs {
    #[command(flatten)]
    pub peak: PeakArgs,
    /// Where to write the page, one HTML file that loads nothing else
    #[arg(short, long, default_value = "report.html", value_name = "FILE")]
    pub output: PathBuf,
    /// Open the page in the browser
    #[arg(long)]
    pub open: bool,
    /// Print the figures of the page as one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// Whose peak is explained.
#[derive(Debug, Args)]
pub struct PeakArgs {
    /// The trace, or a file that `trace --import` reads, for example a memory snapshot of PyTorch, or a table of buffers as `pack` reads it,
    /// or a finished run that `train --report` wrote
    pub trace: PathBuf,
    /// A plan for the trace, to explain its peak instead of the peak without a limit
    pub plan: Option<PathBuf>,
    /// Time budget for the suggestions, which are plans at several limits
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = parse_duration)]
    pub time: Duration,
    #[command(flatten)]
    pub inputs: InputArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// `elbowroom compare`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom compare r50.trace --memory 30%..100%
  elbowroom compare r50.trace --memory 40%..90% --steps 11 --planners greedy,dynprog --svg r50.svg
  elbowroom compare r50.trace --memory 30%..100% --html r50/
      Writes r50/index.html, whose points lead to the pages of their plans.
  elbowroom compare recorded/*.json --memory 30%..70% --steps 3 --planners dtr,rotor,bo,auto
      Prints one table with a line for each trace and limit.
  elbowroom compare vgg*.trace --overhead 15% --planners bo --packer smartpool-best --baseline pool
      Finds the smallest limit at which bo keeps to an overhead of 15 %.")]
pub struct CompareArgs {
    /// The traces, or files that `trace --import` reads. Several give one table of overheads
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// The limits on the arena, from the smallest to the largest [default: 30%..100%, with --overhead 5%..100%]
    #[arg(long, value_name = "SIZE..SIZE")]
    pub memory: Option<MemoryRange>,
    /// Limit live memory instead of the arena and assign no offsets
    #[arg(long, alias = "load-limit", value_name = "SIZE..SIZE", conflicts_with = "memory")]
    pub live_limit: Option<MemoryRange>,
    /// Number of limits, at equal distances [default: 8, with --overhead 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub steps: Option<u32>,
    /// Find the smallest limit at which each planner's overhead is at most this
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, conflicts_with = "svg")]
    pub overhead: Option<f64>,
    /// The planners, separated by commas [default: all but best-of]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = planner_name())]
    pub planners: Vec<String>,
    /// Let every planner work alone [default: `auto` also starts from the plans of the other rows at the same limit]
    #[arg(long, conflicts_with = "overhead")]
    pub alone: bool,
    /// The packer
    #[arg(long, value_parser = PackerName, default_value = elbowroom::registry::DEFAULT_PACKER)]
    pub packer: String,
    /// The packer that determines the unconstrained peak, of which limits are shares; pool behaves like an online allocator [default: --packer]
    #[arg(long, value_name = "PACKER", value_parser = PackerName, conflicts_with = "live_limit")]
    pub baseline: Option<String>,
    /// Print, for each trace and planner, the largest iteration time ÷ lower bound over all limits and the longest planning time
    #[arg(long, value_name = "BOUND", conflicts_with_all = ["overhead", "csv", "json"])]
    pub ratio: Option<RatioTo>,
    /// Samples in an iteration: adds a column with samples per second
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["overhead", "ratio", "csv", "json"])]
    pub samples: Option<u64>,
    /// Draw overhead over memory as an SVG file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write a page to this folder, index.html: overhead over memory with the lower bound, where each point leads to the page of its plan
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["overhead", "live_limit"])]
    pub html: Option<PathBuf>,
    /// Print comma-separated values instead of a table
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub freedom: FreedomArgs,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub inputs: InputArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub options: PlannerOptions,
    #[command(flatten)]
    pub network: DqnArgs,
}

/// What iteration times are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RatioTo {
    /// The lower bound on the iteration time of any plan
    Bound,
    /// Proposition 3 of Beaumont et al., a bound for plans that recompute nothing and keep persistent tensors on the device
    Chain,
    /// The value of Algorithm 1 of Beaumont et al., a bound for plans of a chain that only offload; a trace that is no chain has none
    Relaxed,
}

/// `elbowroom pack`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom pack buffers.csv --capacity 1048576 -o placed.csv
  elbowroom pack a.csv b.trace snapshot.jsonl.gz --packer auto,best-fit,size

A table of buffers is a CSV file, one line for each buffer:
  id,lower,upper,size
  weights,0,9,4096
  scratch,3,5,1000
Positions are whole numbers; `upper` is exclusive. A column `end` in place of `upper` is inclusive:
the last position at which the buffer is alive. `start` and `begin` are other names of `lower`.
Optional columns: alignment, offset (the buffer is pinned there), hint (ignored) and gaps (like 4-6 8-9).
A trace stands for its buffers when every tensor stays on the device.")]
pub struct PackArgs {
    /// Tables of buffers (CSV), traces, or files that `trace --import` reads; - for standard input. Several give a table of results
    #[arg(required_unless_present = "minimalloc", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Bytes that the arena may take [default: search for the smallest arena]
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<Bytes>,
    /// The packers, separated by commas. Several give a table of results
    #[arg(
        long, value_delimiter = ',', value_name = "NAMES", value_parser = PackerName,
        default_value = elbowroom::registry::DEFAULT_PACKER
    )]
    pub packer: Vec<String>,
    /// Where to write the buffers with their offsets, as CSV
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// A memory, as NAME=CAPACITY@COST; repeat it for several. COST is that of a byte of traffic [default: 1 for the first, 2 for the second, ...].
    /// The table's column `bank` lists the banks in which a buffer may lie (empty: all), `traffic` the bytes read and written [default: its size]
    #[arg(long, value_name = "NAME=CAPACITY@COST", conflicts_with_all = ["capacity", "packer", "previous"])]
    pub bank: Vec<BankSpec>,
    /// A placed table of an earlier version of FILE, with offsets. Buffers of the same id stay where they were if they can; the fewest bytes move
    #[arg(long, value_name = "PLACED", conflicts_with = "packer")]
    pub previous: Option<PathBuf>,
    /// Take MiniMalloc's command line from here on: --capacity=12 --input=IN.csv --output=OUT.csv --timeout=5s --validate --minimize_capacity
    #[arg(long, value_name = "FLAGS", num_args = 0.., allow_hyphen_values = true, conflicts_with = "files")]
    pub minimalloc: Option<Vec<String>>,
    /// With -o, write the best placement even if it does not fit the capacity
    #[arg(long, requires = "output")]
    pub keep_missed: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub search: SearchArgs,
}

/// `elbowroom reproduce`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom reproduce                          lists every table and figure by name
  elbowroom reproduce zhang-table-2            the paper's figures, ours, their ratio and the reason for a difference
  elbowroom reproduce all --quick -o papers    fewer networks and limits, in less than two minutes; with pictures")]
pub struct ReproduceArgs {
    /// Tables and figures by name, or all [default: list the names]
    #[arg(value_name = "NAME|all")]
    pub names: Vec<String>,
    /// Compute fewer networks, limits and batch sizes
    #[arg(long)]
    pub quick: bool,
    /// Print a JSON list of rows instead of text
    #[arg(long)]
    pub json: bool,
    /// Also write the rows (reproduce.json) and a picture of every figure with curves (SVG) to this folder
    #[arg(short, long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
