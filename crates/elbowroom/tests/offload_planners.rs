//! The engine confirms the predictions of the offload planners: every plan passes the checker, trains bit-exactly, and uses the
//! bytes of arena and of link that it said, values that stay away over the end of the iteration included. The example `offload` does the
//! same on every network of the zoo.

mod promise;

use elbowroom::graph::zoo::{OptimizerKind, Options};

use promise::{Network, PLANNERS};

/// Few, for tests are quick: the baselines then look at some of their settings only.
const EVALUATIONS: u64 = 6;

#[test]
fn plans_run_as_promised() {
    let small = |batch| Options::new(batch).length(12).width(32).layers(2);
    // A head of GPT has 64 columns.
    let adam = small(2).optimizer(OptimizerKind::Adam).width(64);
    // Enough sequences and steps for several blocks.
    let lstm = small(32).length(48);
    let (mut away, mut ran) = (0, [0; PLANNERS.len()]);
    for (name, options) in
        [("resnet18", Options::new(2)), ("vgg11", Options::new(8)), ("lstm", lstm), ("gpt", adam)]
    {
        let mut network = Network::new(name, &options).unwrap();
        for (planner, ran) in PLANNERS.into_iter().zip(&mut ran) {
            let Some(done) = network.run(planner, EVALUATIONS).unwrap() else { continue };
            *ran += 1;
            let at = format!("{planner} on {name} at {} %", done.percent);
            assert_eq!(done.broken, [""; 0], "{at}");
            assert!(!done.traffic.to_host.is_zero() && !done.traffic.to_device.is_zero(), "{at}");
            away += done.away;
        }
    }
    assert!(ran.iter().all(|&networks| networks >= 1) && ran.iter().sum::<i32>() >= 36, "{ran:?}");
    assert!(away > 20, "only {away} persistent values were away over the end of an iteration");
}
