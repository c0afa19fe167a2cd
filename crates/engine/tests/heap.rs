//! One heap buffer for each value and no plan gives the oracle's bits: the baseline of timings computes the same thing.

mod support;

use std::sync::Arc;

use elbowroom_engine::Interpreter;
use elbowroom_engine::kernels::heap::HeapRun;

use support::{convnet, inputs, transformer};

#[test]
fn heap_buffers_give_the_oracle_s_bits() {
    for graph in [convnet(), transformer()] {
        let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap());
        let mut oracle = Interpreter::new(&graph, 5);
        let mut heap = HeapRun::new(Arc::new(graph.clone()), pool.clone(), 5);
        for iteration in 0..3 {
            let inputs = inputs(&graph, iteration);
            let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
            let expected = oracle.run(&pool, &inputs).unwrap();
            assert!(heap.run(iteration, &inputs) == expected, "{} iteration {iteration}", graph.name);
        }
        for position in 0..graph.persistent.len() {
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(heap.persistent(position)), bits(oracle.persistent(position)), "{}", graph.name);
        }
    }
}
