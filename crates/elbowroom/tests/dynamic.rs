//! Trainings with dynamic execution, all the time or until there are plans: under the limit, and bit-exact with the unlimited run.

mod support;

use std::path::PathBuf;

use elbowroom::algorithms::AlgorithmChoice;
use elbowroom::engine;
use elbowroom::graph::zoo::Options;
use elbowroom::ir::Bytes;
use elbowroom::ir::planning::Freedom;
use elbowroom::network::Model;
use elbowroom::report::TrainReport;
use elbowroom::size::MemorySpec;
use elbowroom::train::{TrainError, Training};

use support::{Quiet, method};

#[derive(Clone)]
struct Case<'a> {
    network: &'a str,
    options: Options,
    memory: &'a str,
    freedom: Freedom,
    dynamic: bool,
    iterations: u64,
    samples: Option<u64>,
    longest: Option<usize>,
    save: Option<PathBuf>,
    host_memory: Bytes,
    seed: u64,
}

impl Case<'_> {
    fn new(network: &str, options: Options) -> Case<'_> {
        let (memory, freedom) = ("50%", Freedom::ALL);
        let (samples, longest, save, host_memory) = (None, None, None, Bytes(64 << 30));
        Case {
            network,
            options,
            memory,
            freedom,
            dynamic: false,
            iterations: 3,
            samples,
            longest,
            save,
            host_memory,
            seed: 7,
        }
    }

    fn run(&self) -> Result<TrainReport, TrainError> {
        let model = Model::new(self.network, self.options.clone()).unwrap().epoch(self.samples.unwrap_or(0));
        let model = match self.longest {
            Some(longest) => model.longest(longest).unwrap(),
            None => model,
        };
        let memory: MemorySpec = self.memory.parse().unwrap();
        let mut training = Training::new(model, memory)
            .method(method())
            .freedom(self.freedom)
            .iterations(self.iterations)
            .algorithms(AlgorithmChoice::AsBuilt)
            .host_memory(self.host_memory)
            .seed(self.seed)
            .threads(1)
            .verify(true)
            .dynamic(self.dynamic);
        if let Some(path) = &self.save {
            training = training.save(path, 1);
        }
        training.run_observed(&Quiet)
    }
}

fn resnet(batch: usize) -> Options {
    Options::new(batch).image(16)
}

fn language(batch: usize) -> Options {
    let (length, width) = (Some(12), Some(64));
    Options::new(batch).length(length).width(width).layers(2).vocabulary(64)
}

/// Batch normalization, attention and recurrence, under limits that make most values leave.
#[test]
fn whole_trainings_on_demand_equal_the_unlimited_run() {
    let only = |offload| Freedom { offload, recompute: !offload, ..Freedom::ALL };
    for (network, options) in [("resnet20", resnet(4)), ("gpt", language(8)), ("lstm", language(8))] {
        for memory in ["70%", "50%", "35%"] {
            let case = Case { memory, dynamic: true, ..Case::new(network, options.clone()) };
            // For some networks, too little memory is left for recomputing everything: then only offloading helps.
            let freedoms = [Freedom::ALL, only(true), only(false)];
            for &freedom in &freedoms[..if memory == "50%" { 3 } else { 1 }] {
                let report = match (Case { freedom, ..case.clone() }).run() {
                    Err(
                        TrainError::Refused(_) | TrainError::Engine(engine::EngineError::OutOfMemory { .. }),
                    ) if freedom != Freedom::ALL => {
                        continue;
                    }
                    report => report.unwrap_or_else(|error| panic!("{network} at {memory}: {error}")),
                };
                assert_eq!(report.verified, Some(true), "{network} at {memory}");
                assert_eq!(
                    (report.execution.dynamic_iterations, report.execution.planned_iterations),
                    (3, 0)
                );
                assert!(report.execution.dynamic_peak_bytes <= report.plan.limit_bytes);
                let left = report.execution.dynamic_evictions + report.execution.dynamic_offloads;
                assert!(left > 0, "{network} at {memory}");
            }
        }
    }
}

#[test]
fn a_training_runs_on_demand_once_and_is_planned_when_its_trace_comes_again() {
    let report = Case::new("resnet20", resnet(4)).run().unwrap();
    let execution = report.execution;
    assert_eq!((execution.dynamic_iterations, execution.planned_iterations), (1, 2));
    assert_eq!((execution.structures, execution.plans_made), (1, 1));
    assert_eq!(report.measured_peak_bytes, report.plan.predicted_peak_bytes);
    assert_eq!(report.verified, Some(true));
}

#[test]
fn a_single_iteration_follows_the_plan_for_estimated_durations() {
    let report = Case { iterations: 1, ..Case::new("resnet20", resnet(4)) }.run().unwrap();
    assert_eq!((report.execution.dynamic_iterations, report.execution.planned_iterations), (0, 1));
    assert_eq!(report.measured_peak_bytes, report.plan.predicted_peak_bytes);
    assert_eq!(report.verified, Some(true));
}

#[test]
fn the_last_batch_of_an_epoch_follows_a_plan_and_the_parameters_stay_where_they_are() {
    let case = Case { samples: Some(10), iterations: 9, memory: "60%", ..Case::new("resnet20", resnet(4)) };
    let report = case.run().unwrap();
    let execution = report.execution;
    assert_eq!((execution.structures, execution.dynamic_iterations), (2, 1), "{execution:?}");
    // The first smaller batch follows a plan that is derived from that of the whole batch, the other two a plan of their own if it is faster.
    let own = execution.plans_made - 1;
    assert!(own <= 1, "{execution:?}");
    assert_eq!((execution.derived_plans, execution.derived_iterations), (1, 3 - 2 * own), "{execution:?}");
    assert_eq!(report.verified, Some(true));
    assert_eq!(report.measured_peak_bytes, report.plan.predicted_peak_bytes);
}

/// No structure of these occurs often enough to be worth a search.
#[test]
fn residual_branches_left_out_at_random_leave_the_plan_of_the_largest_structure() {
    let cases = [
        ("stochastic-resnet20", resnet(2), "60%", 7),
        ("stochastic-resnet20", resnet(8), "40%", 1),
        ("stochastic-resnet32", resnet(1), "45%", 2),
        ("stochastic-resnet50", Options::new(1).image(32).width(8), "50%", 3),
        ("stochastic-resnet18", Options::new(3).image(8).width(8), "100%", 4),
    ];
    for (network, options, memory, seed) in cases {
        let report = Case { iterations: 9, memory, seed, ..Case::new(network, options) }.run().unwrap();
        let execution = report.execution;
        assert!(execution.structures > 3, "{network} {execution:?}");
        assert_eq!(execution.underived_iterations, 0, "{network}: {:?}", report.underived_reason);
        // If the largest structure comes first, it is measured, as that of any other network.
        assert!(execution.dynamic_iterations <= 1, "{network} {execution:?}");
        assert_eq!(execution.dynamic_iterations + execution.planned_iterations, 9, "{network}");
        assert!(execution.derived_iterations > 4, "{network} {execution:?}");
        assert_eq!(report.verified, Some(true), "{network}");
        assert_eq!(report.measured_peak_bytes, report.plan.predicted_peak_bytes, "{network}");
        assert!(report.measured_peak_bytes <= report.plan.limit_bytes, "{network}");
        assert!(report.arena_above_intact, "{network}");
    }
}

/// Sentences of many lengths: shapes change from iteration to iteration, with one boundary.
#[test]
fn sentences_of_many_lengths_are_planned_when_their_lengths_come_again() {
    let options = language(4).length(None).width(16);
    let report = Case { iterations: 60, memory: "60%", longest: Some(10), ..Case::new("seq2seq", options) }
        .run()
        .unwrap();
    let execution = report.execution;
    assert!(execution.structures > 10, "{execution:?}");
    assert!(execution.planned_iterations > execution.dynamic_iterations, "{execution:?}");
    assert!(execution.plans_made <= execution.structures, "{execution:?}");
    // The persistent tensors move once, to the offsets of the first plan.
    assert!(execution.dynamic_peak_bytes <= report.plan.limit_bytes);
    assert_eq!(report.verified, Some(true));
    assert_eq!(report.measured_peak_bytes, report.plan.predicted_peak_bytes);
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_refused_before_the_first_iteration() {
    let save = Some(PathBuf::from("/nowhere/at/all.safetensors"));
    // A training of this many iterations would not end.
    let error = Case { save, iterations: u64::MAX, ..Case::new("resnet20", resnet(2)) }.run().unwrap_err();
    assert!(matches!(error, TrainError::Checkpoint(_)), "{error}");
}

#[test]
fn iterations_on_demand_keep_to_the_host_memory() {
    // Without recomputation only the host helps.
    let freedom = Freedom { recompute: false, ..Freedom::ALL };
    let case = Case { memory: "80%", freedom, dynamic: true, ..Case::new("gpt", language(8)) };
    let most = case.run().unwrap().execution.dynamic_host_bytes;
    assert!(most > Bytes::ZERO);
    let tight = Case { host_memory: most, ..case.clone() }.run().unwrap();
    assert_eq!((tight.verified, tight.execution.dynamic_host_bytes <= most), (Some(true), true));
    // A quarter of it; the other tensors are recomputed.
    let quarter = Bytes(most.get() / 4);
    let short = Case { host_memory: quarter, freedom: Freedom::ALL, ..case.clone() }.run().unwrap();
    assert_eq!(short.verified, Some(true));
    assert!(short.execution.dynamic_host_bytes <= quarter, "{:?}", short.execution);
    let none = Case { host_memory: Bytes::ZERO, freedom: Freedom::ALL, ..case }.run().unwrap();
    assert_eq!((none.execution.dynamic_offloads, none.verified), (0, Some(true)));
}
