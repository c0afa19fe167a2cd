//! Numbers that are known when a network is built: shapes and what is computed from them, scalars, small tables.

use crate::proto::{Tensor, element};

/// Most elements that are computed when a network is built.
const MOST: usize = 1 << 22;

/// A tensor of known numbers. Whole numbers are exact up to 2⁵³.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    pub dims: Vec<usize>,
    pub values: Vec<f64>,
    /// Whether its elements are whole numbers or truth values.
    pub whole: bool,
}

impl Constant {
    pub fn list(values: impl IntoIterator<Item = usize>) -> Self {
        let values: Vec<f64> = values.into_iter().map(|value| value as f64).collect();
        Self { dims: vec![values.len()], values, whole: true }
    }

    pub fn reals(values: &[f32]) -> Self {
        let values: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
        Self { dims: vec![values.len()], values, whole: false }
    }

    pub fn scalar(value: f64, whole: bool) -> Self {
        Self { dims: Vec::new(), values: vec![value], whole }
    }

    /// The only element, of a tensor of any number of axes.
    pub fn single(&self) -> Option<f64> {
        match self.values[..] {
            [value] => Some(value),
            _ => None,
        }
    }

    pub fn ints(&self) -> Vec<i64> {
        self.values.iter().map(|&value| value as i64).collect()
    }

    /// The numbers of a tensor of the file; `None` if it has no elements here or of another type.
    pub fn of(tensor: &Tensor) -> Option<Self> {
        let dims: Vec<usize> =
            tensor.dims.iter().map(|&extent| usize::try_from(extent).ok()).collect::<Option<_>>()?;
        let count = elements(&dims)?;
        let whole = !matches!(tensor.data_type, element::FLOAT | element::DOUBLE);
        let values: Vec<f64> = match (&tensor.raw, tensor.data_type) {
            (Some(raw), element::FLOAT) if !raw.is_empty() || count == 0 => {
                raw.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes))).collect()
            }
            (Some(raw), element::DOUBLE) => {
                raw.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect()
            }
            (Some(raw), element::INT64) => {
                raw.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes) as f64).collect()
            }
            (Some(raw), element::INT32) => {
                raw.as_chunks().0.iter().map(|&bytes| f64::from(i32::from_le_bytes(bytes))).collect()
            }
            (Some(raw), element::BOOL) => raw.iter().map(|&byte| f64::from(u8::from(byte != 0))).collect(),
            (_, element::FLOAT) => tensor.floats.iter().map(|&value| f64::from(value)).collect(),
            (_, element::DOUBLE) => tensor.doubles.clone(),
            (_, element::INT64) => tensor.longs.iter().map(|&value| value as f64).collect(),
            (_, element::INT32 | element::BOOL) => {
                tensor.ints.iter().map(|&value| f64::from(value)).collect()
            }
            _ => return None,
        };
        (values.len() == count).then_some(Self { dims, values, whole })
    }

    /// Its elements under other extents.
    pub fn reshaped(mut self, dims: Vec<usize>) -> Self {
        self.dims = dims;
        self
    }

    /// The elements under these extents, repeated along axes of extent 1, as of NumPy.
    pub fn broadcast(&self, dims: &[usize]) -> Option<Self> {
        let missing = dims.len().checked_sub(self.dims.len())?;
        let fits = self.dims.iter().zip(&dims[missing..]).all(|(own, wanted)| own == wanted || *own == 1);
        let count = elements(dims).filter(|_| fits)?;
        let mut values = Vec::with_capacity(count);
        for index in 0..count {
            let (mut rest, mut at, mut stride) = (index, 0, 1);
            for axis in (0..dims.len()).rev() {
                let step = rest % dims[axis];
                rest /= dims[axis];
                if axis >= missing {
                    let own = self.dims[axis - missing];
                    at += if own == 1 { 0 } else { step } * stride;
                    stride *= own;
                }
            }
            values.push(self.values[at]);
        }
        Some(Self { dims: dims.to_vec(), values, whole: self.whole })
    }

    /// `f` of two tensors, element by element.
    pub fn zip(&self, other: &Self, whole: bool, f: impl Fn(f64, f64) -> f64) -> Option<Self> {
        let dims = common_extents(&self.dims, &other.dims)?;
        let (a, b) = (self.broadcast(&dims)?, other.broadcast(&dims)?);
        let values = a.values.iter().zip(&b.values).map(|(&a, &b)| f(a, b)).collect();
        Some(Self { dims, values, whole })
    }

    /// `f` of every element.
    pub fn map(&self, whole: bool, f: impl Fn(f64) -> f64) -> Self {
        Self { dims: self.dims.clone(), values: self.values.iter().map(|&value| f(value)).collect(), whole }
    }

    /// The blocks of these numbers of one axis.
    pub fn take(&self, axis: usize, indices: &[usize]) -> Option<Self> {
        let extent = *self.dims.get(axis)?;
        let inner: usize = self.dims[axis + 1..].iter().product();
        let outer: usize = self.dims[..axis].iter().product();
        let mut dims = self.dims.clone();
        dims[axis] = indices.len();
        let mut values = Vec::with_capacity(elements(&dims)?);
        for block in 0..outer {
            for &index in indices {
                values.extend_from_slice(self.values.get((block * extent + index) * inner..)?.get(..inner)?);
            }
        }
        Some(Self { dims, values, whole: self.whole })
    }
}

/// The extents over which two tensors repeat, as of NumPy: an axis that one lacks, or has with extent 1, is that of the other.
pub fn common_extents(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let extent = |dims: &[usize], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(1, |at| dims[at]);
    let axis = |axis: usize| match [extent(a, axis), extent(b, axis)] {
        [1, other] | [other, 1] => Some(other),
        [one, other] => (one == other).then_some(one),
    };
    (0..rank).map(axis).collect()
}

/// Number of elements, if it is small enough to be computed with here.
pub fn elements(dims: &[usize]) -> Option<usize> {
    dims.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent)).filter(|&count| count <= MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_tensors_repeat_along_axes_of_one() {
        let column = Constant { dims: vec![2, 1], values: vec![1.0, 2.0], whole: true };
        let row = Constant::list([10, 20, 30]);
        let sum = column.zip(&row, true, |a, b| a + b).unwrap();
        assert_eq!((sum.dims, sum.values), (vec![2, 3], vec![11.0, 21.0, 31.0, 12.0, 22.0, 32.0]));
        assert_eq!(column.zip(&Constant::list([1, 2, 3]).reshaped(vec![3, 1]), true, |a, _| a), None);
        let taken = row.zip(&column, true, |a, b| a * b).unwrap().take(1, &[2, 0]).unwrap();
        assert_eq!(taken.values, [30.0, 10.0, 60.0, 20.0]);
        assert_eq!(row.take(0, &[3]), None);
    }
}
