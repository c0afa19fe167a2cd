//! Images of another size: every axis that changes is a product with a matrix of known numbers, `[extent after, extent before]`, whose rows say how much of
//! each element before is in one after.

use super::matrix;
use crate::constant::{Constant, elements};
use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Tensor, Value};

/// How an axis is interpolated.
#[derive(Clone, Copy, Debug)]
struct Interpolation<'s> {
    mode: &'s str,
    /// Which place before a place after corresponds to.
    coordinates: &'s str,
    /// Where the nearest element is rounded to.
    nearest: &'s str,
    /// The parameter of cubic interpolation.
    cubic: f64,
}

/// `Resize`, and `Upsample` of old files.
pub fn resize(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let old = node.kind() == "Upsample" || import.model.opset() < 11;
    let text = |name: &str, none: &str| node.text(name).unwrap_or_else(|| none.to_owned());
    let (mode, nearest) = (text("mode", "nearest"), text("nearest_mode", "round_prefer_floor"));
    let coordinates = text("coordinate_transformation_mode", if old { "asymmetric" } else { "half_pixel" });
    let form = Interpolation {
        mode: &mode,
        coordinates: &coordinates,
        nearest: if old { "floor" } else { &nearest },
        cubic: f64::from(node.float("cubic_coeff_a").unwrap_or(-0.75)),
    };
    let exact = ["antialias", "exclude_outside"].iter().all(|name| node.int(name).unwrap_or(0) == 0);
    let known =
        ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"].contains(&form.coordinates);
    if !exact || !known || !["nearest", "linear", "cubic"].contains(&form.mode) {
        return Err(format!(
            "of resizing, nearest, linear and cubic interpolation are supported, without antialiasing and with the coordinates half_pixel, asymmetric \
             and align_corners; this is {mode} with {coordinates}"
        )
        .into());
    }
    let mut x = import.tensor(node.required(0)?)?;
    let dims = x.dims();
    let axes: Vec<usize> = match node.ints("axes") {
        Some(axes) => axes.iter().map(|&axis| node.axis(axis, dims.len())).collect::<Result<_, _>>()?,
        None => (0..dims.len()).collect(),
    };
    let list = |input: usize| import.numbers(node.input(input)).filter(|list| !list.values.is_empty());
    let scales = node.floats("scales").map(Constant::reals).or_else(|| list(if old { 1 } else { 2 }));
    let sizes = list(3);
    let given = scales.as_ref().or(sizes.as_ref()).ok_or("its sizes are computed by the network")?;
    if given.values.len() != axes.len() {
        return Err(format!("it has {} sizes for {} axes", given.values.len(), axes.len()).into());
    }
    for (&axis, &value) in axes.iter().zip(&given.values) {
        let extent = dims[axis] as f64;
        let (after, scale) = match scales.is_some() {
            true => ((extent * value).floor(), value),
            false => (value, value / extent),
        };
        if !(1.0..=1e9).contains(&after) || scale <= 0.0 {
            return Err(format!("an axis of {extent} cannot become one of {after}").into());
        }
        x = resized(import, &format!("{}.axis{axis}", node.name()), x, axis, after as usize, scale, &form)?;
    }
    Ok(Value::Tensor(x))
}

/// One axis of another extent.
fn resized(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    axis: usize,
    after: usize,
    scale: f64,
    form: &Interpolation<'_>,
) -> Result<Tensor, Refusal> {
    let before = x.dims()[axis];
    if after == before && scale == 1.0 {
        return Ok(x);
    }
    let matrix = form.matrix(before, after, scale).ok_or("its axes are too long")?;
    let Interpolation { mode, coordinates, .. } = form;
    matrix::along(import, name, x, axis, &format!("{mode}.{coordinates}.{before}-{after}.{scale}"), &matrix)
}

impl Interpolation<'_> {
    /// The place among `before` elements that a place among `after` corresponds to.
    fn place(&self, at: usize, [before, after]: [usize; 2], scale: f64) -> f64 {
        let at = at as f64;
        match self.coordinates {
            "asymmetric" => at / scale,
            "align_corners" if after > 1 => at * (before as f64 - 1.0) / (after as f64 - 1.0),
            "align_corners" => 0.0,
            "pytorch_half_pixel" if after == 1 => 0.0,
            _ => (at + 0.5) / scale - 0.5,
        }
    }

    /// The elements around a place, with their shares. Those outside are the nearest inside.
    fn shares(&self, place: f64) -> Vec<(f64, f64)> {
        let (first, t) = (place.floor(), place - place.floor());
        match self.mode {
            "nearest" => {
                let nearest = match self.nearest {
                    "floor" => first,
                    "ceil" => place.ceil(),
                    "round_prefer_ceil" => (place + 0.5).floor(),
                    _ => (place - 0.5).ceil(),
                };
                vec![(nearest, 1.0)]
            }
            "linear" => vec![(first, 1.0 - t), (first + 1.0, t)],
            _ => {
                // Keys, 1981: one polynomial within a distance of one, another one within two.
                let a = self.cubic;
                let near = |d: f64| ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0;
                let far = |d: f64| ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a;
                vec![
                    (first - 1.0, far(1.0 + t)),
                    (first, near(t)),
                    (first + 1.0, near(1.0 - t)),
                    (first + 2.0, far(2.0 - t)),
                ]
            }
        }
    }

    /// `[after, before]`, if it is not too large.
    fn matrix(&self, before: usize, after: usize, scale: f64) -> Option<Constant> {
        let mut values = vec![0.0; elements(&[after, before])?];
        for (at, row) in values.chunks_exact_mut(before).enumerate() {
            for (element, share) in self.shares(self.place(at, [before, after], scale)) {
                row[element.clamp(0.0, before as f64 - 1.0) as usize] += share;
            }
        }
        Some(Constant { dims: vec![after, before], values, whole: false })
    }
}
