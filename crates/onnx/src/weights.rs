//! The tensors of a file: what is known of each without its elements, and where these lie. Large ones stay in the file until a training reads them.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use prost::bytes::Bytes;

use crate::OnnxError;
use crate::constant::Constant;
use crate::proto::{Tensor, element};

/// Most elements of a tensor that is no weight: of indices and masks, and of what shapes are computed from.
const SMALL: usize = 1 << 20;

/// Where the elements of a tensor lie: 32-bit floats in the order of little-endian machines, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// In a file.
    File {
        /// The file.
        path: Arc<Path>,
        /// The first byte.
        offset: u64,
    },
    /// In memory, where the file has them in a form that cannot be read in place.
    Memory(Arc<[f32]>),
}

/// How a tensor of the file becomes one of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Element by element.
    Plain,
    /// From `[inputs, outputs]` to `[outputs, inputs]`.
    Transposed,
}

/// The values with which a parameter of a network begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// The name of the parameter.
    pub name: String,
    /// Where they lie.
    pub place: Place,
    /// In which form.
    pub form: Form,
    /// Their number.
    pub len: usize,
}

impl Weight {
    /// The error of a file that cannot be read.
    pub fn unreadable(&self, source: io::Error) -> OnnxError {
        self.place.unreadable(source)
    }

    /// Reads the values of a parameter of `shape` into a buffer of its size.
    ///
    /// # Errors
    /// The error of the system if the file cannot be read.
    pub fn read(&self, shape: &[usize], value: &mut [u8]) -> io::Result<()> {
        let mut columns = Vec::new();
        let target = match self.form {
            Form::Plain => &mut *value,
            Form::Transposed => {
                columns.resize(value.len(), 0);
                &mut columns
            }
        };
        self.place.read(target)?;
        if let (Form::Transposed, &[outputs, inputs]) = (self.form, shape) {
            for (at, bytes) in columns.chunks_exact(4).enumerate() {
                let (input, output) = (at / outputs, at % outputs);
                value[4 * (output * inputs + input)..][..4].copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

/// What the file says of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A parameter of a module, which is trained.
    Parameter,
    /// A buffer of a module or a tensor of the program, which stay as they are.
    Buffer,
    /// Nothing.
    Unknown,
}

impl Kind {
    /// As PyTorch's exporter names it.
    pub fn named(name: &str) -> Self {
        match name {
            "PARAMETER" => Self::Parameter,
            "BUFFER" | "CONSTANT_TENSOR" => Self::Buffer,
            _ => Self::Unknown,
        }
    }
}

/// A tensor of the file.
#[derive(Clone, Debug)]
pub enum Initializer {
    /// Floats of one axis or more, or a parameter: a weight.
    Weight {
        dims: Vec<usize>,
        place: Place,
        /// Its element, if it has one alone.
        single: Option<f64>,
        /// Whether training leaves it as it is: a buffer of a module, and no parameter.
        fixed: bool,
    },
    /// Numbers that the import computes with.
    Constant(Constant),
    /// Of a type that no operation here takes.
    Other(&'static str),
}

impl Initializer {
    /// Of a tensor in a file of these bytes.
    pub fn of(tensor: Tensor, kind: Kind, file: &Bytes, path: &Path) -> Result<Self, OnnxError> {
        let name = &tensor.name;
        let format =
            |why: String| OnnxError::Format { path: path.to_owned(), why: format!("`{name}` {why}") };
        let dims: Option<Vec<usize>> =
            tensor.dims.iter().map(|&extent| usize::try_from(extent).ok()).collect();
        let count =
            dims.as_ref().and_then(|dims| dims.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)));
        let (Some(dims), Some(count)) = (dims, count.filter(|&count| count <= 1 << 36)) else {
            return Err(format(format!("has impossible extents {:?}", tensor.dims)));
        };
        if count == 0 {
            return Ok(Self::Other("a tensor without elements"));
        }
        // A scalar that the file does not call a parameter is a number of the program.
        let is_weight = tensor.data_type == element::FLOAT && (kind == Kind::Parameter || !dims.is_empty());
        if !is_weight {
            let numbers = matches!(
                tensor.data_type,
                element::FLOAT | element::DOUBLE | element::INT32 | element::INT64 | element::BOOL
            );
            if !numbers || count > SMALL {
                return Ok(Self::Other(element::name(tensor.data_type)));
            }
            let whole = inlined(&tensor, count, path)?;
            let constant = Constant::of(&whole);
            return constant
                .map(Self::Constant)
                .ok_or_else(|| format(format!("does not hold its {count} elements")));
        }
        let place = if tensor.location == 1 {
            external(&tensor, path).map_err(format)?
        } else {
            match &tensor.raw {
                Some(raw) if raw.len() == 4 * count => {
                    // The bytes are a part of the file, not a copy.
                    let offset = (raw.as_ptr() as usize).wrapping_sub(file.as_ptr() as usize);
                    if offset.checked_add(raw.len()).is_none_or(|end| end > file.len()) {
                        return Err(format("lies outside of the file".to_owned()));
                    }
                    Place::File { path: path.into(), offset: offset as u64 }
                }
                None if tensor.floats.len() == count => Place::Memory(tensor.floats.as_slice().into()),
                raw => {
                    let found = raw.as_ref().map_or(tensor.floats.len(), |raw| raw.len() / 4);
                    return Err(format(format!("has {found} elements instead of {count}")));
                }
            }
        };
        let single = match count {
            1 if kind != Kind::Parameter => {
                let whole = inlined(&tensor, count, path)?;
                Constant::of(&whole).and_then(|value| value.single())
            }
            _ => None,
        };
        Ok(Self::Weight { dims, place, single, fixed: kind == Kind::Buffer })
    }

    /// The same tensor as one that training changes.
    pub fn trained(&self) -> Self {
        match self.clone() {
            Self::Weight { dims, place, single, .. } => Self::Weight { dims, place, single, fixed: false },
            other => other,
        }
    }

    /// The elements of a small weight, if they can be read.
    pub fn numbers(&self) -> Option<Vec<f64>> {
        let Self::Weight { dims, place, .. } = self else { return None };
        let len: usize = dims.iter().product();
        let mut bytes = vec![0; 4 * (len <= SMALL).then_some(len)?];
        place.read(&mut bytes).ok()?;
        Some(bytes.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes))).collect())
    }

    /// The bits of a weight's elements, if all are the same. A file that cannot be read is left to the reading of weights, which says so.
    pub fn one_value(&self) -> Option<u32> {
        let Self::Weight { dims, place, .. } = self else { return None };
        place.one_value(dims.iter().product()).ok().flatten()
    }
}

impl Place {
    /// The error of a file that cannot be read.
    fn unreadable(&self, source: io::Error) -> OnnxError {
        let path = match self {
            Self::File { path, .. } => path.to_path_buf(),
            Self::Memory(_) => PathBuf::new(),
        };
        OnnxError::Io { path, source }
    }

    /// Reads its first bytes, as many as `target` has.
    fn read(&self, target: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File { path, offset } => {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(*offset))?;
                file.read_exact(target)
            }
            Self::Memory(values) => {
                for (bytes, value) in target.chunks_exact_mut(4).zip(values.iter()) {
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
                Ok(())
            }
        }
    }

    /// The bits of this many elements, if all are the same.
    fn one_value(&self, len: usize) -> io::Result<Option<u32>> {
        let (path, offset) = match self {
            Self::Memory(values) => {
                let first = values.first().map(|value| value.to_bits());
                return Ok(first.filter(|&first| values.iter().all(|value| value.to_bits() == first)));
            }
            Self::File { path, offset } => (path, *offset),
        };
        let mut file = BufReader::new(File::open(path)?);
        file.seek(SeekFrom::Start(offset))?;
        let (mut first, mut next) = ([0; 4], [0; 4]);
        file.read_exact(&mut first)?;
        for _ in 1..len {
            file.read_exact(&mut next)?;
            if next != first {
                return Ok(None);
            }
        }
        Ok(Some(u32::from_le_bytes(first)))
    }
}

/// A tensor with its elements, which may lie in another file.
fn inlined<'t>(tensor: &'t Tensor, count: usize, path: &Path) -> Result<Cow<'t, Tensor>, OnnxError> {
    if tensor.location != 1 {
        return Ok(Cow::Borrowed(tensor));
    }
    let format =
        |why: String| OnnxError::Format { path: path.to_owned(), why: format!("`{}` {why}", tensor.name) };
    let place = external(tensor, path).map_err(format)?;
    let mut bytes = vec![0; count * element::size(tensor.data_type)];
    place.read(&mut bytes).map_err(|source| place.unreadable(source))?;
    Ok(Cow::Owned(Tensor { raw: Some(bytes.into()), ..tensor.clone() }))
}

/// Where a tensor lies whose elements are in another file.
fn external(tensor: &Tensor, path: &Path) -> Result<Place, String> {
    let entry =
        |key: &str| tensor.external.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
    let name = Path::new(entry("location").ok_or("lies in another file without a name")?);
    // A file names its neighbours, nothing else of this machine.
    if name.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(format!(
            "lies in {}, which is not in the folder of the network or below it",
            name.display()
        ));
    }
    let offset = match entry("offset") {
        None => 0,
        Some(text) => text
            .trim()
            .parse()
            .map_err(|_| format!("lies at `{text}` of another file, which is no number"))?,
    };
    let folder: PathBuf = path.parent().map(Path::to_owned).unwrap_or_default();
    Ok(Place::File { path: folder.join(name).into(), offset })
}
