//! The header of a safetensors file, read with limits.
//!
//! A checkpoint may come from anywhere, so everything in the header is checked against the file: its length,
//! every tensor's size against its shape and type, and that the tensors fill the data without holes or
//! overlap. By hand, because every refusal names the tensor and says what to do; the `safetensors` crate's
//! errors for a size or a hole name none. Left out: the tensors' values.

use std::collections::BTreeMap;
use std::path::Path;

use record::failure::{Failure, Result};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::files::show;

/// The limit of the reference implementation: a larger header is an attack or a mistake.
const LARGEST_HEADER: u64 = 100_000_000;
/// Hint for a file that does not follow the format.
const DAMAGED: &str = "the file is damaged or is no safetensors file: copy or download it again";
/// Bytes before the header: its length as a little-endian 64-bit number.
pub(crate) const PREFIX: usize = 8;

/// Hint for weights of another type.
pub(crate) const FLOATS: &str = "weights are f32, bf16 or f16; quantized checkpoints are not trained";

/// Element types a safetensors file may hold; only [`ElementType::is_weight`] ones can be a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE single.
    F32,
    BF16,
    /// IEEE half.
    F16,
    /// 16-bit unsigned: the low halves of split single-precision weights.
    U16,
    /// Any other type of the format, with its size in bytes: copied, never computed with.
    Other(usize),
}

impl ElementType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            ElementType::F32 => 4,
            ElementType::BF16 | ElementType::F16 | ElementType::U16 => 2,
            ElementType::Other(size) => size,
        }
    }

    /// Returns true if a model's weights may have this type.
    pub fn is_weight(self) -> bool {
        matches!(self, ElementType::F32 | ElementType::BF16 | ElementType::F16)
    }

    fn named(name: &str) -> Option<ElementType> {
        Some(match name {
            "F32" => ElementType::F32,
            "BF16" => ElementType::BF16,
            "F16" => ElementType::F16,
            "U16" => ElementType::U16,
            "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => ElementType::Other(1),
            "I16" => ElementType::Other(2),
            "I32" | "U32" => ElementType::Other(4),
            "I64" | "U64" | "F64" => ElementType::Other(8),
            _ => return None,
        })
    }

    /// The format's name of a type that is written.
    pub(crate) fn name(self) -> &'static str {
        let name =
            ["F32", "BF16", "F16", "U16"].into_iter().find(|name| ElementType::named(name) == Some(self));
        name.unwrap_or_default()
    }
}

/// Location of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) dtype: ElementType,
    pub(crate) shape: Vec<usize>,
    /// Bytes from the start of the file.
    pub(crate) offset: usize,
    /// Bytes.
    pub(crate) length: usize,
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Bytes from the start of the file to the first tensor.
///
/// # Errors
/// The file is shorter than its header claims, or the header is absurdly large.
pub(crate) fn data_start(file: &[u8], path: &Path) -> Result<usize> {
    let fault = |cause: String| Failure::data(format!("{}: {cause}", show(path))).hint(DAMAGED);
    let Some(prefix) = file.first_chunk::<PREFIX>() else {
        return Err(fault(format!("{} bytes is too short for a safetensors file", file.len())));
    };
    let length = u64::from_le_bytes(*prefix);
    if length > LARGEST_HEADER {
        return Err(fault(format!("the header claims {length} bytes, more than {LARGEST_HEADER}"))
            .hint("is this a safetensors file? pickled checkpoints are not read"));
    }
    let start = PREFIX + length as usize;
    if start > file.len() {
        return Err(fault(format!("the header claims {length} bytes but the file has {}", file.len()))
            .hint("the file is truncated: copy or download it again"));
    }
    Ok(start)
}

/// The tensors of a file by name.
///
/// # Errors
/// A breach of the format, with the tensor's name.
pub(crate) fn parse(file: &[u8], path: &Path) -> Result<BTreeMap<String, Entry>> {
    let fault = |cause: String| Failure::data(format!("{}: {cause}", show(path))).hint(DAMAGED);
    let start = data_start(file, path)?;
    let raw: BTreeMap<String, &RawValue> = serde_json::from_slice(&file[PREFIX..start])
        .map_err(|error| fault(format!("the header is not a JSON object of tensors: {error}")))?;

    let mut entries = BTreeMap::new();
    for (name, value) in raw {
        if name == "__metadata__" {
            continue;
        }
        let raw: RawEntry = serde_json::from_str(value.get())
            .map_err(|error| fault(format!("tensor {name:?} is described wrongly: {error}")))?;
        let dtype = ElementType::named(&raw.dtype).ok_or_else(|| {
            fault(format!("tensor {name:?} has the unknown type {:?}", raw.dtype)).hint(FLOATS)
        })?;
        let [from, to] = raw.data_offsets;
        let length = raw
            .shape
            .iter()
            .try_fold(dtype.size() as u64, |product, &extent| product.checked_mul(extent))
            .filter(|_| raw.shape.len() <= 8)
            .ok_or_else(|| fault(format!("tensor {name:?} has the impossible shape {:?}", raw.shape)))?;
        if to.checked_sub(from) != Some(length) {
            return Err(fault(format!(
                "tensor {name:?} of shape {:?} needs {length} bytes but spans {from}..{to}",
                raw.shape
            )));
        }
        if to > (file.len() - start) as u64 {
            return Err(fault(format!(
                "tensor {name:?} ends at byte {to} of the data but the file has {}",
                file.len() - start
            ))
            .hint("the file is truncated: copy or download it again"));
        }
        let shape = raw.shape.iter().map(|&extent| extent as usize).collect();
        entries.insert(name, Entry { dtype, shape, offset: start + from as usize, length: length as usize });
    }
    // Without holes or overlap: with two names for the same bytes, an update of one tensor would change the other.
    let mut order: Vec<(&String, &Entry)> = entries.iter().collect();
    order.sort_by_key(|(_, entry)| (entry.offset, entry.length));
    let mut end = start;
    for (name, entry) in order {
        if entry.offset != end {
            let at = entry.offset;
            return Err(fault(format!(
                "tensor {name:?} starts at byte {at}, not at {end} where the one before it ends"
            )));
        }
        end += entry.length;
    }
    if end < file.len() {
        return Err(fault(format!("{} bytes after the last tensor belong to none", file.len() - end)));
    }
    Ok(entries)
}
