//! Unpacks gzip, if necessary, up to a maximum size.

use std::borrow::Cow;
use std::io::Read;

use crate::error::ImportError;

/// Maximum size. A captured iteration of a large model has tens of megabytes, a long memory history some hundreds.
const LIMIT: u64 = 1 << 31;

/// The content of a file, unpacked if it starts with gzip's signature.
pub fn inflate<'a>(bytes: &'a [u8], file: &str) -> Result<Cow<'a, [u8]>, ImportError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return if bytes.len() as u64 > LIMIT { Err(too_large(file)) } else { Ok(Cow::Borrowed(bytes)) };
    }
    let mut unpacked = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes)
        .take(LIMIT + 1)
        .read_to_end(&mut unpacked)
        .map_err(|source| ImportError::Gzip { file: file.to_owned(), source })?;
    if unpacked.len() as u64 > LIMIT {
        return Err(too_large(file));
    }
    Ok(Cow::Owned(unpacked))
}

fn too_large(file: &str) -> ImportError {
    ImportError::TooLarge { file: file.to_owned(), limit: LIMIT }
}
