//! `why`: figures that must add up, and treatments that must not promise more than is possible.

use elbowroom::graph::zoo;
use elbowroom::ir::planning::Freedom;
use elbowroom::ir::search::{Budget, Observer, Silent};
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::registry;
use elbowroom::sim::presets;
use elbowroom::why::{Group, Means, Why};

fn task(network: &str, batch: usize) -> Task {
    let graph = zoo::build(network, &zoo::Options::new(batch)).unwrap();
    Task::estimate(&graph, &presets::machine("v100").unwrap(), Freedom::ALL).unwrap()
}

fn explain(task: &Task, limit: Option<Bytes>) -> Why {
    let packer = registry::packer("best-fit").unwrap();
    let method = Method::new(registry::planner("auto").unwrap(), packer, Budget::evaluations(50)).at_once();
    let smallest =
        Method::new(registry::planner("floor").unwrap(), packer, Budget::evaluations(50)).at_once();
    let plan = limit.map(|limit| pipeline::plan(&task.with_memory(limit), &method, &Silent).unwrap().plan);
    let kept = pipeline::unconstrained(task, packer, &Silent).unwrap();
    Why::of(task, plan.as_deref(), &kept, &Means { method: &method, smallest: &smallest }, &Silent)
}

/// What holds of every explanation.
fn consistent(why: &Why) {
    let kinds: Bytes = why.kinds.iter().map(|share| share.bytes).sum();
    assert_eq!(kinds, why.peak_live_bytes, "{}", why.trace);
    let groups: Bytes = why.groups.iter().map(|group| group.bytes).sum();
    assert_eq!(groups + why.other_bytes, why.peak_live_bytes, "{}", why.trace);
    // The arena ends with the last byte of its highest tensor; live memory counts whole multiples of the alignment.
    let arena = why.arena_bytes.align_up(presets::machine("v100").unwrap().align);
    assert!(why.in_use_bytes <= why.peak_live_bytes && why.peak_live_bytes <= arena);
    assert!(why.floor_bytes <= why.peak_live_bytes);
    for group in &why.groups {
        let name = format!("{} {} {}", why.trace, group.kind.name(), group.module);
        assert!(group.peak_without_bytes >= why.peak_live_bytes.saturating_sub(group.bytes), "{name}");
        assert!(group.in_use_bytes <= group.bytes && group.bytes <= group.most_bytes, "{name}");
        // Without the group's tensors the peak is lower than if they are away for a while. (An op that is recomputed remakes all of its results,
        // those of other groups included, which can save more.)
        if let Some(saving) = &group.offload {
            assert!(saving.peak_bytes >= group.peak_without_bytes, "{name}: {saving:?}");
        }
        for saving in [&group.offload, &group.recompute].into_iter().flatten() {
            assert_eq!(saving.saved_bytes, why.peak_live_bytes.saturating_sub(saving.peak_bytes), "{name}");
            assert!(saving.iteration_ns > Nanos::ZERO && saving.overhead >= 0.0 && saving.tensors > 0);
        }
    }
    assert!(why.suggestions.iter().all(|suggestion| !suggestion.text.is_empty()));
}

#[test]
fn figures_add_up_on_networks_of_every_family() {
    for (network, batch) in [
        ("resnet20", 4),
        ("vgg11", 2),
        ("densenet121", 1),
        ("lstm", 2),
        ("gpt", 1),
        ("unet", 1),
        ("kmeans", 8),
    ] {
        let why = explain(&task(network, batch), None);
        assert!(!why.planned && !why.allocations_only);
        consistent(&why);
        // Offloading helps where the op at the peak does not use all that is there.
        let idle = why.in_use_bytes < why.peak_live_bytes;
        assert_eq!(why.groups.iter().any(|group| group.offload.is_some()), idle, "{network}");
    }
}

#[test]
fn a_plans_peak_is_below_its_limit_and_consists_of_its_own_tensors() {
    let task = task("resnet20", 8);
    let peak = explain(&task, None).arena_bytes;
    let why = explain(&task, Some(Bytes(peak.get() / 2)));
    assert!(why.planned && why.arena_bytes <= Bytes(peak.get() / 2));
    consistent(&why);
    assert!(why.groups.iter().all(|group| group.offload.is_none() && group.recompute.is_none()));
}

#[test]
fn suggestions_lie_between_what_is_proved_and_what_is_used_now() {
    let task = task("resnet20", 8);
    let why = explain(&task, None);
    let smallest = why.smallest_limit_bytes.unwrap();
    assert!(why.floor_bytes <= smallest && smallest < why.arena_bytes);
    assert!(why.suggestions.iter().any(|suggestion| suggestion.bytes == smallest));
    assert!(why.suggestions.iter().all(|suggestion| suggestion.bytes < why.arena_bytes));
}

#[test]
fn what_is_alive_elsewhere_saves_nothing() {
    let why = explain(&task("vgg11", 2), None);
    let elsewhere: Vec<&Group> = why.groups.iter().filter(|group| group.bytes.is_zero()).collect();
    assert!(!elsewhere.is_empty());
    for group in elsewhere {
        assert_eq!(group.peak_without_bytes, why.peak_live_bytes, "{}", group.module);
        assert!(group.offload.is_none() && group.recompute.is_none(), "nothing of it is alive at the peak");
    }
}

/// Interrupts from the beginning, as a clock does that has run out.
struct Late;

impl Observer for Late {
    fn interrupted(&self) -> bool {
        true
    }
}

#[test]
fn savings_that_the_time_leaves_out_are_counted() {
    let task = task("resnet20", 4);
    let packer = registry::packer("best-fit").unwrap();
    let method = Method::new(registry::planner("auto").unwrap(), packer, Budget::evaluations(50)).at_once();
    let kept = pipeline::unconstrained(&task, packer, &Silent).unwrap();
    let means = Means { method: &method, smallest: &method };
    let treated = |why: &Why| {
        why.groups.iter().filter(|group| group.offload.is_some() || group.recompute.is_some()).count()
    };
    let why = Why::of(&task, None, &kept, &means, &Silent);
    assert!(why.unevaluated_groups == 0 && treated(&why) > 0);
    let late = Why::of(&task, None, &kept, &means, &Late);
    assert!(late.unevaluated_groups >= treated(&why) && treated(&late) == 0);
    assert_eq!((late.peak_live_bytes, late.groups.len()), (why.peak_live_bytes, why.groups.len()));
    consistent(&late);
}
