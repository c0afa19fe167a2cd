//! Takes gzip off, if there is any, and refuses data that unpacks without end.

use std::borrow::Cow;
use std::io::Read;

use crate::error::ImportError;

/// The most bytes that are unpacked. A captured iteration of a large model has tens of megabytes.
const LIMIT: u64 = 1 << 30;

/// The content of a file, unpacked if it begins as gzip does.
pub fn inflate<'a>(bytes: &'a [u8], file: &str) -> Result<Cow<'a, [u8]>, ImportError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut unpacked = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes)
        .take(LIMIT + 1)
        .read_to_end(&mut unpacked)
        .map_err(|source| ImportError::Gzip { file: file.to_owned(), source })?;
    if unpacked.len() as u64 > LIMIT {
        return Err(ImportError::TooLarge { file: file.to_owned(), limit: LIMIT });
    }
    Ok(Cow::Owned(unpacked))
}
