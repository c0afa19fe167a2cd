//! Machines by name. The rates of the H200 and, in part, of the GTX 1080 Ti were measured; links have the rates measured in the papers, if
//! any; everything else comes from the manufacturers' data sheets.

use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::{Bytes, Nanos};

const GIB: u64 = 1 << 30;

/// Names of all presets.
pub const NAMES: [&str; 8] = ["p100", "v100", "gtx1080ti", "titanv", "a100", "h100", "h200", "cpu"];

/// What Beaumont et al. measured from PyTorch on a V100 over PCIe 3.0 ×16, section 6.1. The other cards on the same link get the same
/// rate: their data sheets only give the bus's 15.75 GB/s, which no copy reaches.
const PCIE3: Channel = Channel::with_rate(12_200_000_000);
/// PCIe 4.0 ×16: twice the rate of [`PCIE3`].
const PCIE4: Channel = Channel::with_rate(24_400_000_000);
/// PCIe 5.0 ×16: four times the rate of [`PCIE3`].
const PCIE5: Channel = Channel::with_rate(48_800_000_000);

/// A machine by its name in [`NAMES`]; `None` for another name.
pub fn machine(name: &str) -> Option<Machine> {
    let machine = match name {
        // NVIDIA Tesla P100 PCIe 16 GB data sheet: 9.3 TFLOPS single precision, 18.7 half, 732 GB/s.
        "p100" => halves(18_700, gpu(name, 16 * GIB, PCIE3, 9_300_000_000_000, 732_000_000_000)),
        // NVIDIA Tesla V100 PCIe 16 GB data sheet: 14 TFLOPS, 112 in tensor cores, 900 GB/s. One transfer at a time: Beaumont's assumption B.
        "v100" => Machine {
            shared_link: true,
            ..halves(112_000, gpu(name, 16 * GIB, PCIE3, 14_000_000_000_000, 900_000_000_000))
        },
        // NVIDIA GeForce GTX 1080 Ti. Its data sheet says 11.3 TFLOPS and 484 GB/s; ops reached less. These are the rates at which the
        // roofline gives the iteration times of VGG-16 and VGG-19 in Zhang's Table I (70 ms and 84 ms; all other networks there took
        // longer than the roofline then says). The link as measured in Zhang's implementation: device to host
        // 47.2 µs + 0.0756 ns/B, host to device 9.7 µs + 0.0823 ns/B.
        "gtx1080ti" => Machine {
            to_host: Channel { latency: Nanos(47_200), rate: 13_227_513_228 },
            to_device: Channel { latency: Nanos(9_700), rate: 12_150_668_287 },
            ..gpu(name, 11 * GIB, PCIE3, 3_000_000_000_000, 300_000_000_000)
        },
        // NVIDIA Titan V: 14.9 TFLOPS, 110 in tensor cores, 653 GB/s.
        "titanv" => halves(110_000, gpu(name, 12 * GIB, PCIE3, 14_900_000_000_000, 653_000_000_000)),
        // NVIDIA A100 80 GB data sheet: 19.5 TFLOPS single precision without tensor cores, 312 in them, 2,039 GB/s.
        "a100" => halves(312_000, gpu(name, 80 * GIB, PCIE4, 19_500_000_000_000, 2_039_000_000_000)),
        // NVIDIA H100 SXM data sheet: 67 TFLOPS single precision, 989 in tensor cores, 3.35 TB/s.
        "h100" => halves(989_000, gpu(name, 80 * GIB, PCIE5, 67_000_000_000_000, 3_350_000_000_000)),
        // NVIDIA H200 SXM, 141 GB, as PyTorch 2.11 reached it: products in single precision 51 TFLOPS (data sheet: 67), those of steps of ViT-L/16
        // and Qwen3 in bfloat16 320 (989; 757 in one of 8,192 each way), copies of 256 MiB 4.2 TB/s read and written (4.8), and over the link
        // 43 GB/s each way with both in use (55 with one).
        "h200" => halves(
            320_000,
            gpu(
                name,
                141_000_000_000,
                Channel::with_rate(43_100_000_000),
                51_000_000_000_000,
                4_200_000_000_000,
            ),
        ),
        // Round figures for two cores of a laptop: 50 GFLOP/s, 10 GB/s, and a host tier reached by copying at 4 GB/s.
        "cpu" => Machine {
            align: Bytes(64),
            launch: Nanos(2_000),
            ..gpu(name, 8 * GIB, Channel::with_rate(4_000_000_000), 50_000_000_000, 10_000_000_000)
        },
        _ => return None,
    };
    Some(machine)
}

/// A card with one stream per direction, 64 GiB of host memory, CUDA's allocation granularity of 256 bytes and 5 µs per launch.
fn gpu(name: &str, memory: u64, link: Channel, flops_per_second: u64, bytes_per_second: u64) -> Machine {
    Machine {
        name: name.to_owned(),
        memory: Bytes(memory),
        align: Bytes(256),
        host_memory: Bytes(64 * GIB),
        to_host: link,
        to_device: link,
        shared_link: false,
        flops_per_second,
        half_flops_per_second: None,
        bytes_per_second,
        launch: Nanos(5_000),
    }
}

/// The same card with its rate of products of 16-bit numbers, in 10⁹ operations per second.
fn halves(gflops_per_second: u64, machine: Machine) -> Machine {
    Machine { half_flops_per_second: Some(gflops_per_second * 1_000_000_000), ..machine }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_machine_that_can_be_used() {
        for name in NAMES {
            let machine = machine(name).unwrap();
            assert_eq!(machine.name, name);
            assert!(machine.align.get().is_power_of_two());
            assert!(machine.to_host.rate > 0 && machine.to_device.rate > 0);
            // All but two multiply 16-bit numbers faster than others.
            assert_eq!(machine.half_rate() > machine.flops_per_second, !["gtx1080ti", "cpu"].contains(&name));
        }
        assert_eq!(machine("abacus"), None);
    }

    #[test]
    fn the_measured_link_of_the_gtx_1080_ti() {
        let machine = machine("gtx1080ti").unwrap();
        assert_eq!(machine.to_host.time(Bytes(1_000_000)), Nanos(47_200 + 75_600));
        assert_eq!(machine.to_device.time(Bytes(1_000_000)), Nanos(9_700 + 82_300));
    }
}
