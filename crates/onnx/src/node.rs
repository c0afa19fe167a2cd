//! A node and its attributes, as the operators' definitions mean them.

use std::collections::HashSet;

use crate::constant::Constant;
use crate::error::Refusal;
use crate::proto;

/// A node, with its attributes by name.
pub struct Node<'m>(pub &'m proto::Node);

/// A part of one axis: from `start` on, every `step`-th, `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisPart {
    pub axis: usize,
    pub start: usize,
    pub count: usize,
    pub step: isize,
}

impl AxisPart {
    pub fn indices(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |at| self.start.wrapping_add_signed(self.step * at as isize))
    }
}

impl<'m> Node<'m> {
    pub fn kind(&self) -> &'m str {
        &self.0.kind
    }

    /// Its name, or that of its first result.
    pub fn name(&self) -> String {
        let first = || self.0.outputs.first().cloned().unwrap_or_default();
        if self.0.name.is_empty() { first() } else { self.0.name.clone() }
    }

    /// The name of an input that is there.
    pub fn input(&self, index: usize) -> Option<&'m str> {
        self.0.inputs.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The name of an input that must be there.
    pub fn required(&self, index: usize) -> Result<&'m str, Refusal> {
        self.input(index).ok_or_else(|| format!("its input {index} is missing").into())
    }

    fn attribute(&self, name: &str) -> Option<&'m proto::Attribute> {
        self.0.attributes.iter().find(|attribute| attribute.name == name)
    }

    pub fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.int
    }

    pub fn float(&self, name: &str) -> Option<f32> {
        self.attribute(name)?.float
    }

    pub fn tensor(&self, name: &str) -> Option<&'m proto::Tensor> {
        self.attribute(name)?.tensor.as_ref()
    }

    pub fn ints(&self, name: &str) -> Option<&'m [i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    pub fn floats(&self, name: &str) -> Option<&'m [f32]> {
        self.attribute(name).map(|attribute| attribute.floats.as_slice())
    }

    /// The numbers that it holds, if it is a `Constant`.
    pub fn constant(&self) -> Option<Constant> {
        let scalar = |value: Option<f64>, whole| value.map(|value| Constant::scalar(value, whole));
        self.tensor("value")
            .and_then(Constant::of)
            .or_else(|| scalar(self.float("value_float").map(f64::from), false))
            .or_else(|| scalar(self.int("value_int").map(|value| value as f64), true))
            .or_else(|| {
                let ints = self.ints("value_ints")?;
                let values = ints.iter().map(|&value| value as f64).collect();
                Some(Constant { dims: vec![ints.len()], values, whole: true })
            })
            .or_else(|| Some(Constant::reals(self.floats("value_floats")?)))
    }

    pub fn text(&self, name: &str) -> Option<String> {
        let bytes = self.attribute(name)?.string.as_ref()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    /// An axis of a tensor of this many, counted from the end if it is negative.
    pub fn axis(&self, given: i64, rank: usize) -> Result<usize, Refusal> {
        let axis = if given < 0 { given.saturating_add(rank as i64) } else { given };
        let found = usize::try_from(axis).ok().filter(|&axis| axis < rank);
        found.ok_or_else(|| format!("there is no axis {given} of {rank}").into())
    }

    /// Axes as an attribute, or as numbers that are known.
    fn axes(&self, given: Option<&Constant>, rank: usize) -> Result<Option<Vec<usize>>, Refusal> {
        let listed = given.map(Constant::ints).or_else(|| self.ints("axes").map(<[i64]>::to_vec));
        listed.map(|axes| axes.iter().map(|&axis| self.axis(axis, rank)).collect()).transpose()
    }

    /// The axes of a reduction.
    pub fn reduced(&self, given: Option<&Constant>, rank: usize) -> Result<Vec<usize>, Refusal> {
        let mut axes = self.axes(given, rank)?.unwrap_or_else(|| (0..rank).collect());
        axes.sort_unstable();
        axes.dedup();
        Ok(axes)
    }

    /// The order of axes of a transposition.
    pub fn order(&self, rank: usize) -> Result<Vec<usize>, Refusal> {
        let Some(order) = self.ints("perm") else { return Ok((0..rank).rev().collect()) };
        let order = order.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
        let distinct: HashSet<_> = order.iter().collect();
        if order.len() != rank || distinct.len() != rank {
            return Err(format!("{order:?} is no order of {rank} axes").into());
        }
        Ok(order)
    }

    /// The extents after a reshape of any kind, from its second input where it is known.
    pub fn reshape(&self, dims: &[usize], given: Option<&Constant>) -> Result<Vec<usize>, Refusal> {
        let count: usize = dims.iter().product();
        match self.kind() {
            "Flatten" => {
                let given = self.int("axis").unwrap_or(1);
                let at = if given == dims.len() as i64 { dims.len() } else { self.axis(given, dims.len())? };
                Ok(vec![dims[..at].iter().product(), dims[at..].iter().product()])
            }
            "Squeeze" => {
                let axes = self.axes(given, dims.len())?;
                let gone = |axis: usize| axes.as_ref().map_or(dims[axis] == 1, |axes| axes.contains(&axis));
                if let Some(axis) = (0..dims.len()).find(|&axis| gone(axis) && dims[axis] != 1) {
                    return Err(format!("axis {axis} has an extent of {}, not 1", dims[axis]).into());
                }
                Ok((0..dims.len()).filter(|&axis| !gone(axis)).map(|axis| dims[axis]).collect())
            }
            "Unsqueeze" => {
                let listed = given.map(Constant::ints).or_else(|| self.ints("axes").map(<[i64]>::to_vec));
                let listed = listed.ok_or("it states no axes")?;
                let rank = dims.len() + listed.len();
                let new =
                    listed.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<HashSet<_>, _>>()?;
                let mut old = dims.iter();
                Ok((0..rank)
                    .map(|axis| if new.contains(&axis) { 1 } else { old.next().copied().unwrap_or(1) })
                    .collect())
            }
            _ => {
                let wanted = given.ok_or("its shape is computed from values of the network; export with fixed sizes other than the batch")?;
                let mut found = Vec::new();
                let mut open = None;
                for (axis, extent) in wanted.ints().into_iter().enumerate() {
                    found.push(match extent {
                        0 if self.int("allowzero").unwrap_or(0) == 0 => {
                            *dims.get(axis).ok_or("it keeps an axis that its input lacks")?
                        }
                        -1 if open.is_none() => {
                            open = Some(axis);
                            1
                        }
                        extent => usize::try_from(extent).map_err(|_| format!("{extent} is no extent"))?,
                    });
                }
                let known = found.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)).unwrap_or(0);
                if let (Some(open), true) = (open, known > 0) {
                    found[open] = count / known;
                }
                match found.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)) == Some(count) {
                    true => Ok(found),
                    false => Err(format!("{dims:?} has no view of extents {:?}", wanted.ints()).into()),
                }
            }
        }
    }

    /// The parts that a slice takes: starts, ends, axes and steps are inputs, or attributes in old files.
    pub fn parts(&self, dims: &[usize], inputs: &[Option<Constant>]) -> Result<Vec<AxisPart>, Refusal> {
        let list = |index: usize, name: &str| {
            let known = inputs.get(index).and_then(Option::as_ref).map(Constant::ints);
            known.or_else(|| self.ints(name).map(<[i64]>::to_vec))
        };
        let starts = list(0, "starts").ok_or("its starts are not known")?;
        let ends = list(1, "ends").ok_or("its ends are not known")?;
        let axes = list(2, "axes").unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = list(3, "steps").unwrap_or_else(|| vec![1; starts.len()]);
        if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
            return Err("its starts, ends, axes and steps have different lengths".into());
        }
        let each = starts.iter().zip(&ends).zip(axes.iter().zip(&steps));
        each.map(|((&start, &end), (&axis, &step))| {
            let axis = self.axis(axis, dims.len())?;
            let extent = dims[axis] as i64;
            let wrap = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
            let (start, end) = match step {
                0 => return Err("its step is zero".into()),
                1.. => (wrap(start).clamp(0, extent), wrap(end).clamp(0, extent)),
                _ => (wrap(start).clamp(-1, extent - 1), wrap(end).clamp(-1, extent - 1)),
            };
            let distance = (end - start) as i128;
            let count = (distance + i128::from(step - step.signum())) / i128::from(step);
            let count = usize::try_from(count.max(0)).unwrap_or(0);
            let step = isize::try_from(step).map_err(|_| "its step is too large")?;
            Ok(AxisPart { axis, start: start.max(0) as usize, count, step })
        })
        .collect()
    }
}
