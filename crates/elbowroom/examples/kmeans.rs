//! k-means on blocks, under less than half of the memory that it needs, with equal results.
//!
//! `cargo run --release -p elbowroom --example kmeans -- [--json] [planner]`

use bytemuck::{cast_slice, cast_slice_mut};
use elbowroom::alloc::device::{BlockHandle, Device, DeviceError, DeviceStats};
use elbowroom::blocks::Swap;

/// Number of blocks that hold the points.
pub const PARTS: usize = 24;
const DIMENSIONS: usize = 8;
const CLUSTERS: usize = 5;

/// Operations and events of one iteration.
pub const OPERATIONS: usize = 2 * PARTS + 1;

/// Runs k-means over `PARTS * points` random points on a device, and returns the centres.
pub fn kmeans(device: &mut Device, points: usize, iterations: usize) -> Result<Vec<f32>, DeviceError> {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let bytes = |floats: usize| size_of::<f32>() * floats;
    let parts: Vec<BlockHandle> = (0..PARTS).map(|_| device.malloc(bytes(points * DIMENSIONS))).collect();
    let centres = device.malloc(bytes(CLUSTERS * DIMENSIONS));
    for &block in parts.iter().chain([&centres]) {
        device.exec(|_, writes| cast_slice_mut(writes[0]).fill_with(&mut random), &[], &[block])?;
    }
    for _ in 0..iterations {
        // For each cluster the sum of its points, and how many they are.
        let sums = device.malloc(bytes(CLUSTERS * (DIMENSIONS + 1)));
        for &part in &parts {
            let nearest = device.malloc(points);
            device.exec(
                |reads, writes| assign(cast_slice(reads[0]), cast_slice(reads[1]), writes[0]),
                &[part, centres],
                &[nearest],
            )?;
            device.exec(
                |reads, writes| accumulate(cast_slice(reads[0]), reads[1], cast_slice_mut(writes[0])),
                &[part, nearest],
                &[sums],
            )?;
            device.free(nearest)?;
        }
        device.exec(
            |reads, writes| divide(cast_slice(reads[0]), cast_slice_mut(writes[0])),
            &[sums],
            &[centres],
        )?;
        device.free(sums)?;
    }
    let mut result = Vec::new();
    device.exec(|reads, _| result = cast_slice(reads[0]).to_vec(), &[centres], &[])?;
    Ok(result)
}

fn assign(points: &[f32], centres: &[f32], nearest: &mut [u8]) {
    for (point, nearest) in points.chunks_exact(DIMENSIONS).zip(nearest) {
        let distance = |cluster: &usize| -> f32 {
            let centre = &centres[cluster * DIMENSIONS..][..DIMENSIONS];
            point.iter().zip(centre).map(|(a, b)| (a - b) * (a - b)).sum()
        };
        let best = (0..CLUSTERS).min_by(|a, b| distance(a).total_cmp(&distance(b)));
        *nearest = best.unwrap_or(0) as u8;
    }
}

fn accumulate(points: &[f32], nearest: &[u8], sums: &mut [f32]) {
    for (point, &cluster) in points.chunks_exact(DIMENSIONS).zip(nearest) {
        let row = &mut sums[usize::from(cluster) * (DIMENSIONS + 1)..][..DIMENSIONS + 1];
        row.iter_mut().zip(point.iter().chain([&1.0])).for_each(|(sum, value)| *sum += value);
    }
}

fn divide(sums: &[f32], centres: &mut [f32]) {
    for (row, centre) in sums.chunks_exact(DIMENSIONS + 1).zip(centres.chunks_exact_mut(DIMENSIONS)) {
        centre.iter_mut().zip(row).for_each(|(value, sum)| *value = sum / row[DIMENSIONS].max(1.0));
    }
}

#[allow(dead_code, reason = "a test uses the rest of this file")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (points, iterations) = (40_000, 20);
    let (options, names): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument == "--json");
    let json = !options.is_empty();
    let name = names.into_iter().next().unwrap_or_else(|| "autoswap".to_owned());
    let run = |limit: usize, planner: Option<Swap>| -> Result<(Vec<f32>, DeviceStats), DeviceError> {
        let mut device = Device::new(limit, planner.map(|planner| Box::new(planner) as Box<_>));
        Ok((kmeans(&mut device, points, iterations)?, device.stats()))
    };
    let (expected, unlimited) = run(1 << 28, None)?;
    let limit = unlimited.peak_live / 2 - 1;
    if !json {
        println!("peak memory {} bytes, limit {limit}, {iterations} iterations", unlimited.peak_live);
    }
    for (kind, planner) in [
        ("dynamic", None),
        (name.as_str(), Some(Swap::with(&name).ok_or("there is no planner of that name")?)),
    ] {
        let (centres, stats) = run(limit, planner)?;
        if json {
            let object = serde_json::json!({
                "execution": kind,
                "limit_bytes": limit,
                "arena_bytes": stats.device_bytes,
                "dynamic_operations": stats.dynamic,
                "planned_operations": stats.planned,
                "to_host_bytes": stats.to_host,
                "to_device_bytes": stats.to_device,
                "equal": centres == expected,
            });
            println!("{object}");
            continue;
        }
        println!(
            "{kind}: arena {} bytes, operations executed dynamically {} and by plan {}, bytes to the host {} and to the device {}, results equal: {}",
            stats.device_bytes,
            stats.dynamic,
            stats.planned,
            stats.to_host,
            stats.to_device,
            centres == expected
        );
    }
    Ok(())
}
