//! Regression by a Gaussian process, and expected improvement, for Bayesian optimization (J. Mockus, *On Bayesian methods for seeking the
//! extremum*, 1974; C. Rasmussen and C. Williams, *Gaussian Processes for Machine Learning*, 2006, algorithm 2.1). A squared-exponential
//! kernel whose length is chosen by likelihood among a few; tens of points, a handful of dimensions.

/// A process fitted to points with values.
#[derive(Debug)]
pub(crate) struct Process<const D: usize> {
    points: Vec<[f64; D]>,
    /// Lower triangle of the Cholesky factor of the kernel matrix, row by row.
    factor: Vec<Vec<f64>>,
    /// Kernel matrix⁻¹ × values.
    weights: Vec<f64>,
    length: f64,
    mean: f64,
    deviation: f64,
}

const LENGTHS: [f64; 4] = [0.25, 0.5, 1.0, 2.0];
/// Added to the diagonal: equal points must not make the matrix singular.
const JITTER: f64 = 1e-6;

impl<const D: usize> Process<D> {
    /// Fits points with values; values are standardized first. `None` without points.
    pub(crate) fn fit(points: &[[f64; D]], values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        let deviation = if variance > 0.0 { variance.sqrt() } else { 1.0 };
        let standard: Vec<f64> = values.iter().map(|value| (value - mean) / deviation).collect();
        let fits = LENGTHS.iter().filter_map(|&length| {
            let factor = cholesky(points, length)?;
            let half = forward(&factor, &standard);
            let fit: f64 = half.iter().map(|z| z * z).sum::<f64>() / 2.0;
            let volume: f64 = factor.iter().enumerate().map(|(i, row)| row[i].ln()).sum();
            let weights = backward(&factor, &half);
            Some((-fit - volume, Self { points: points.to_vec(), factor, weights, length, mean, deviation }))
        });
        fits.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, process)| process)
    }

    /// Mean and standard deviation at a point.
    pub(crate) fn at(&self, point: &[f64; D]) -> (f64, f64) {
        let kernel: Vec<f64> = self.points.iter().map(|other| kernel(point, other, self.length)).collect();
        let mean: f64 = kernel.iter().zip(&self.weights).map(|(k, w)| k * w).sum();
        let explained: f64 = forward(&self.factor, &kernel).iter().map(|z| z * z).sum();
        let deviation = (1.0 - explained).max(0.0).sqrt();
        (self.mean + self.deviation * mean, self.deviation * deviation)
    }

    /// By how much a point is expected to fall below `best`.
    pub(crate) fn expected_improvement(&self, point: &[f64; D], best: f64) -> f64 {
        let (mean, deviation) = self.at(point);
        if deviation <= 0.0 {
            return (best - mean).max(0.0);
        }
        let z = (best - mean) / deviation;
        let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        (best - mean) * below(z) + deviation * density
    }
}

fn kernel<const D: usize>(a: &[f64; D], b: &[f64; D], length: f64) -> f64 {
    let distance: f64 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    (-distance / (2.0 * length * length)).exp()
}

fn cholesky<const D: usize>(points: &[[f64; D]], length: f64) -> Option<Vec<Vec<f64>>> {
    let mut factor: Vec<Vec<f64>> = Vec::with_capacity(points.len());
    for (i, point) in points.iter().enumerate() {
        let mut row = Vec::with_capacity(i + 1);
        for j in 0..=i {
            let inner: f64 = (0..j).map(|k| row[k] * if i == j { row[k] } else { factor[j][k] }).sum();
            let entry = kernel(point, &points[j], length) + if i == j { JITTER } else { 0.0 } - inner;
            if i == j {
                if entry <= 0.0 {
                    return None;
                }
                row.push(entry.sqrt());
            } else {
                row.push(entry / factor[j][j]);
            }
        }
        factor.push(row);
    }
    (!factor.is_empty()).then_some(factor)
}

/// L⁻¹ × values.
fn forward(factor: &[Vec<f64>], values: &[f64]) -> Vec<f64> {
    let mut solved: Vec<f64> = Vec::with_capacity(values.len());
    for (row, value) in factor.iter().zip(values) {
        let inner: f64 = row.iter().zip(&solved).map(|(a, b)| a * b).sum();
        solved.push((value - inner) / row[solved.len()]);
    }
    solved
}

/// L⁻ᵀ × values.
fn backward(factor: &[Vec<f64>], values: &[f64]) -> Vec<f64> {
    let mut solved = values.to_vec();
    for i in (0..solved.len()).rev() {
        solved[i] /= factor[i][i];
        for j in 0..i {
            solved[j] -= factor[i][j] * solved[i];
        }
    }
    solved
}

/// The standard normal distribution function, by M. Abramowitz and I. Stegun, *Handbook of Mathematical Functions*, 26.2.17 (error
/// below 7.5·10⁻⁸).
fn below(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let sum = series.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
    let tail = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * sum;
    if z >= 0.0 { 1.0 - tail } else { tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_passes_through_its_points_and_is_unsure_between_them() {
        let points = [[-1.0, 0.0], [0.0, 0.5], [1.0, -0.5]];
        let process = Process::fit(&points, &[3.0, 1.0, 2.0]).unwrap();
        for (point, value) in points.iter().zip([3.0, 1.0, 2.0]) {
            let (mean, deviation) = process.at(point);
            assert!((mean - value).abs() < 1e-3 && deviation < 1e-2, "{mean} {deviation}");
        }
        let (_, far) = process.at(&[9.0, 9.0]);
        assert!((far - process.deviation).abs() < 1e-9);
        assert!(
            process.expected_improvement(&[0.0, 0.5], 1.0) < process.expected_improvement(&[0.3, 0.4], 1.0)
        );
    }

    #[test]
    fn the_distribution_function_has_its_known_values() {
        for (z, p) in [(0.0, 0.5), (1.0, 0.841_344_746), (-1.96, 0.024_997_895), (3.0, 0.998_650_102)] {
            assert!((below(z) - p).abs() < 1e-7, "{z}");
        }
    }
}
