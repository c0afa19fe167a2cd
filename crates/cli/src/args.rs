//! The command line as it is typed. What the words mean is decided in [`settings`](crate::settings).

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use elbowroom::dqn::settings::Settings;
use elbowroom::graph::zoo::OptimizerKind;
use elbowroom::ir::Bytes;
use elbowroom::machine::{LinkSpec, Rate};
use elbowroom::pipeline::Evaluations;
use elbowroom::size::{BatchSpec, MemoryRange, MemorySpec};

/// Train neural networks in the memory you have.
///
/// You name a limit in bytes. Elbowroom traces one training iteration, plans what stays, what goes to the host and comes back, what is
/// computed again and where every byte lies, proves the plan, and trains under it: the same results to the bit, never a byte over.
#[derive(Debug, Parser)]
#[command(name = "elbowroom", version, max_term_width = 110, propagate_version = true)]
#[command(after_help = "Examples:
  elbowroom train                                      ResNet-18 on synthetic data at half its natural memory
  elbowroom train --model vgg16 --batch 64 --memory 600MiB --data cifar10/
  elbowroom trace --model resnet50 --batch 32 --machine v100 -o r50.trace
  elbowroom plan r50.trace --memory 1.5GiB -o r50.plan
  elbowroom check r50.trace r50.plan

Exit status: 0 yes, 1 no (infeasible, illegal, not equal), 2 error.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// One verb per stage of the road.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a network under a memory limit: trace, plan, check and run
    Train(Box<TrainArgs>),
    /// Trace one training iteration of a network and write it down
    Trace(TraceArgs),
    /// Plan a traced iteration under a memory limit
    Plan(PlanArgs),
    /// Prove that a plan is legal for a trace, or say which rule it breaks
    Check(CheckArgs),
    /// Predict how long a plan's iteration takes, and what it moves
    Simulate(SimulateArgs),
    /// Ask every planner at every limit, side by side
    Compare(CompareArgs),
    /// Place buffers with known lifetimes into one arena
    Pack(PackArgs),
}

/// Which network, how large.
#[derive(Debug, Clone, Args)]
pub struct NetworkArgs {
    /// The network: resnet18, resnet34, resnet50, vgg16, lstm, gpt, … (a wrong name lists them all)
    #[arg(long, default_value = "resnet18")]
    pub model: String,
    /// Samples in a batch; when training, also max for the most that fit the limit
    #[arg(long, default_value = "64", value_name = "SAMPLES|max")]
    pub batch: BatchSpec,
    /// The forward part alone: no gradients and no updates, dropout off, normalization by running statistics
    #[arg(long)]
    pub forward_only: bool,
    /// Height and width of images, in pixels
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub image: Option<u32>,
    /// Number of classes
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..))]
    pub classes: Option<u32>,
    /// Tokens in a sequence
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub length: Option<u32>,
    /// Number of different tokens
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub vocabulary: Option<u32>,
    /// Columns of a language model's hidden state; channels of the first stage of a ResNet or U-Net
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub width: Option<u32>,
    /// Layers of a language model
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub layers: Option<u32>,
    /// The optimizer: sgd (with momentum) or adam
    #[arg(long)]
    pub optimizer: Option<OptimizerKind>,
    /// The optimizer's step size
    #[arg(long, value_name = "RATE")]
    pub learning_rate: Option<f32>,
}

/// How to plan.
#[derive(Debug, Clone, Args)]
pub struct PlannerArgs {
    /// The planner (a wrong name lists them all)
    #[arg(long, default_value = elbowroom::registry::DEFAULT_PLANNER)]
    pub planner: String,
    /// The packer (a wrong name lists them all)
    #[arg(long, default_value = elbowroom::registry::DEFAULT_PACKER)]
    pub packer: String,
    #[command(flatten)]
    pub freedom: FreedomArgs,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub network: DqnArgs,
}

/// How `--planner dqn` learns.
#[derive(Debug, Clone, Default, Args)]
pub struct DqnArgs {
    /// Settings of the planner dqn, like episodes=100,hidden=32 (a wrong key lists them all)
    #[arg(long = "dqn", value_name = "KEY=VALUE,...", value_parser = str::parse::<Settings>)]
    pub settings: Option<Settings>,
    /// Let the planner dqn begin with the network of this file, which plan --dqn-save wrote
    #[arg(long = "dqn-from", value_name = "FILE")]
    pub from: Option<PathBuf>,
}

/// What plans may do.
#[derive(Debug, Clone, Args)]
pub struct FreedomArgs {
    /// Keep values off the host
    #[arg(long)]
    pub no_offload: bool,
    /// Compute nothing twice
    #[arg(long)]
    pub no_recompute: bool,
    /// Let ops run in another order than the trace's, wherever every read still finds its value. `auto` searches both orders, each with all
    /// of --evaluations or half of --time, and keeps the better plan: with as many evaluations it is never worse than without
    #[arg(long)]
    pub reorder: bool,
}

/// How hard to look.
#[derive(Debug, Clone, Args)]
pub struct SearchArgs {
    /// Time that each search may take, like 500ms, 10s or 2m
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub time: Duration,
    /// Evaluations that each search may make, in place of a time: reproducible with the seed, on any number of threads. A schedule that
    /// finds no place is followed by others: several numbers are for one of these rounds each, as a plan within a time has told them
    #[arg(long, value_name = "N[,N...]")]
    pub evaluations: Option<Evaluations>,
    /// Where random numbers start
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Threads; all cores if not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
}

/// For which hardware.
#[derive(Debug, Clone, Default, Args)]
pub struct MachineArgs {
    /// The machine to plan for: p100, v100, gtx1080ti, titanv, a100, h100, h200 or cpu
    #[arg(long, value_name = "PRESET")]
    pub machine: Option<String>,
    /// The link to the host: RATE for one lane each way, shared:RATE for both on one lane (12.2GB/s), or a machine's, like v100
    #[arg(long, value_name = "[shared:]RATE|MACHINE")]
    pub link: Option<LinkSpec>,
    /// Alignment of every buffer, in bytes: a power of two
    #[arg(long, value_name = "BYTES")]
    pub align: Option<Bytes>,
}

/// `elbowroom train`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom train --iterations 20 --memory 40%
  elbowroom train --model lstm --memory min --verify
  elbowroom train --model vgg16 --batch max --memory 600MiB --plot loss.svg
  elbowroom train --model gpt --forward-only --resume gpt.safetensors
  elbowroom train --model resnet50 --batch 16 --memory 300MiB --host /tmp --save r50.safetensors")]
pub struct TrainArgs {
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub planner: PlannerArgs,
    /// The limit: bytes (600MiB, 1.5GiB), a share of the natural peak (70%), or min for the smallest feasible
    #[arg(long, default_value = "50%", value_name = "SIZE")]
    pub memory: MemorySpec,
    /// Training iterations
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: u64,
    /// A folder with CIFAR-10 or MNIST files, or a text file for language models; synthetic data if not given
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Where offloaded values go: memory, or a folder to spill into
    #[arg(long, default_value = "memory", value_name = "memory|DIR")]
    pub host: String,
    /// Bytes that offloaded values may take there at once, like 8GiB; 64 GiB if not given
    #[arg(long, value_name = "SIZE")]
    pub host_memory: Option<Bytes>,
    /// Slow the host tier's copies down to this rate each way
    #[arg(long, value_name = "RATE")]
    pub host_rate: Option<Rate>,
    /// Samples in an epoch; its last batch has what is left of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub samples: Option<u64>,
    /// Words of the longest sentence of seq2seq, whose batches have the lengths of their sentences: 50, or 100 with --forward-only. With
    /// --length all of them are that long
    #[arg(long, value_name = "WORDS", conflicts_with = "length", value_parser = clap::value_parser!(u32).range(1..))]
    pub longest: Option<u32>,
    /// Run every iteration on demand, without a plan: evicting, recomputing and fetching as bytes are missing
    #[arg(long)]
    pub reactive: bool,
    /// Let convolutions be computed by algorithms that round otherwise (Winograd's), where they are faster; by default only by algorithms
    /// whose results are equal to the bit
    #[arg(long)]
    pub allow_other_bits: bool,
    /// Run the same iterations without a limit too, and compare losses and parameters to the bit
    #[arg(long)]
    pub verify: bool,
    /// Write a checkpoint to this file at the end, and every --save-every iterations
    #[arg(long, value_name = "FILE", conflicts_with = "forward_only")]
    pub save: Option<PathBuf>,
    /// Iterations between two checkpoints
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub save_every: u64,
    /// Go on from this checkpoint
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Draw the loss over the iterations
    #[arg(long, value_name = "FILE", conflicts_with = "forward_only")]
    pub plot: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

/// How foreign files are read.
#[derive(Debug, Clone, Default, Args)]
pub struct ImportArgs {
    /// Read measured graphs in the units of published results: KiB, 1/100 ms, no workspaces
    #[arg(long, requires = "import")]
    pub published_units: bool,
    /// Hold the batch like any other value, instead of making it again from the host
    #[arg(long, requires = "import")]
    pub hold_inputs: bool,
    /// Let elementwise ops write over a dying input, even where the recorded program did not
    #[arg(long, requires = "import")]
    pub inplace: bool,
}

/// `elbowroom trace`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom trace --model resnet50 --image 224 --batch 32 --machine v100 -o r50.trace
  elbowroom trace --import snapshot.jsonl.gz -o captured.trace")]
pub struct TraceArgs {
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Read an iteration that another program recorded: a chain profile, a recorded op trace, a captured PyTorch trace (joint or eager),
    /// a measured or Checkmate or Chainer graph, or a PyTorch memory snapshot; which it is, is found from the content
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "batch"])]
    pub import: Option<PathBuf>,
    #[command(flatten)]
    pub importing: ImportArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Where to write the trace; standard output if not given
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// `elbowroom plan`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom plan r50.trace --memory 1.5GiB -o r50.plan
  elbowroom plan r50.trace --memory 40% --planner greedy --link shared:12.2GB/s --no-recompute
  elbowroom plan r50.trace --memory 30% --explain     which values leave, what that saves and what it costs")]
pub struct PlanArgs {
    /// The trace, or a file that `trace --import` reads
    pub trace: PathBuf,
    /// The limit in bytes of arena: 600MiB, 70% of the natural peak, or min
    #[arg(long, value_name = "SIZE", required_unless_present = "load_limit", conflicts_with = "load_limit")]
    pub memory: Option<MemorySpec>,
    /// Bound the live load instead and leave placement out, to compare with work that does not place. Nothing has an offset then, so there
    /// is no plan to write or draw
    #[arg(long, value_name = "SIZE")]
    pub load_limit: Option<MemorySpec>,
    #[command(flatten)]
    pub planner: PlannerArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Where to write the plan; only the report is printed if not given
    #[arg(short, long, value_name = "FILE", conflicts_with = "load_limit")]
    pub output: Option<PathBuf>,
    /// Say which values were chosen to leave the device, largest saving (bytes × time) first, and what each costs; all of them with --json
    #[arg(long)]
    pub explain: bool,
    /// Write the network that the planner dqn has trained to this file, as safetensors
    #[arg(long, value_name = "FILE")]
    pub dqn_save: Option<PathBuf>,
    /// Write every episode of the planner dqn to this file, as comma-separated values
    #[arg(long, value_name = "FILE")]
    pub dqn_curve: Option<PathBuf>,
    /// Draw the plan: bytes of arena over time, and the lanes
    #[arg(long, value_name = "FILE", conflicts_with = "load_limit")]
    pub svg: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `elbowroom check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The trace
    pub trace: PathBuf,
    /// The plan
    pub plan: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `elbowroom simulate`
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The trace
    pub trace: PathBuf,
    /// The plan
    pub plan: PathBuf,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Say which values leave the device, largest saving (bytes × time) first, and what each costs; all of them with --json
    #[arg(long)]
    pub explain: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `elbowroom compare`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom compare r50.trace --memory 30%..100%
  elbowroom compare r50.trace --memory 40%..90% --steps 11 --planners greedy,dynprog --link shared:12.2GB/s --svg r50.svg
  elbowroom compare recorded/*.json --memory 30%..70% --steps 3 --planners dtr,rotor,bo,auto    overheads in one table
  elbowroom compare vgg*.trace --overhead 15% --planners bo --packer smartpool-best --baseline pool")]
pub struct CompareArgs {
    /// The traces, or files that `trace --import` reads: one is told in full, several side by side
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// The limits in bytes of arena, from the smallest to the largest; 30%..100% if not given, 5%..100% with --overhead
    #[arg(long, value_name = "SIZE..SIZE")]
    pub memory: Option<MemoryRange>,
    /// Bound the live load instead and leave placement out
    #[arg(long, value_name = "SIZE..SIZE", conflicts_with = "memory")]
    pub load_limit: Option<MemoryRange>,
    /// Number of limits; 8 if not given, 20 with --overhead
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub steps: Option<u32>,
    /// Look for the smallest limit at which each planner's overhead is at most this
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, conflicts_with = "svg")]
    pub overhead: Option<f64>,
    /// The planners, separated by commas; all if not given
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub planners: Vec<String>,
    /// The packer
    #[arg(long, default_value = elbowroom::registry::DEFAULT_PACKER)]
    pub packer: String,
    /// Take shares of what this packer needs when everything stays (pool: an allocator that does not know the future)
    #[arg(long, value_name = "PACKER", conflicts_with = "load_limit")]
    pub baseline: Option<String>,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub freedom: FreedomArgs,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub network: DqnArgs,
    /// Print each planner's largest iteration time ÷ lower bound over the limits, and its longest planning: a line for each trace
    #[arg(long, value_name = "BOUND", conflicts_with_all = ["overhead", "csv", "json"])]
    pub ratio: Option<RatioTo>,
    /// Draw overhead against memory
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print comma-separated values instead of a table
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// What iteration times are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RatioTo {
    /// The bound that no plan can go below
    Bound,
    /// Beaumont's Proposition 3, for plans that recompute nothing and leave persistent values where they are
    Chain,
}

/// `elbowroom pack`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  elbowroom pack buffers.csv --capacity 1048576 -o placed.csv
  elbowroom pack a.csv b.trace snapshot.jsonl.gz --packer auto,best-fit,size")]
pub struct PackArgs {
    /// Buffers, one a line: id, lower, upper, size (and alignment, offset, hint, gaps if wanted). Or a trace, our own or one that
    /// `trace --import` reads: its buffers when everything stays. Several give a table
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Bytes that may be used; the lowest height is sought if not given
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<Bytes>,
    /// The packers (a wrong name lists them all); several give a table
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_value = elbowroom::registry::DEFAULT_PACKER)]
    pub packer: Vec<String>,
    #[command(flatten)]
    pub search: SearchArgs,
    /// Where to write the buffers with their offsets, if they come from a table
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Reads `15%`, or a bare number of percent, as a share.
fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim();
    match number.strip_suffix('%').unwrap_or(number).trim().parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is not a percentage; write it like 0% or 15%")),
    }
}

/// Reads `500ms`, `10s`, `2m`, `1h` or bare seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let malformed = || format!("`{text}` is not a duration; write it like 500ms, 10s or 2m");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
    let seconds_per_unit = match &trimmed[split..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(malformed()),
    };
    let number: f64 = trimmed[..split].trim().parse().map_err(|_| malformed())?;
    if number.is_nan() || number < 0.0 {
        return Err(malformed());
    }
    Duration::try_from_secs_f64(number * seconds_per_unit).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [("500ms", 500), ("10s", 10_000), ("1.5 m", 90_000), ("3", 3_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1s", "1 fortnight", "nans", "1e300h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
