//! Writes safetensors files: new ones, and new values into the layout of an existing one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::{Map, Value, json};

use crate::files::show;
use crate::header::{Entry, PREFIX};
use crate::weights::ElementType;

/// Values of a tensor to write.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Weights, or state of an optimizer.
    F32(&'a [f32]),
    /// The lower halves of f32 weights whose upper halves are published as bf16.
    U16(&'a [u16]),
}

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct NewTensor<'a> {
    /// Hugging Face's name.
    pub name: &'a str,
    /// Extents, outermost first.
    pub shape: &'a [usize],
    /// Row-major values, as many as the shape says.
    pub data: Data<'a>,
}

/// Values converted at once: enough to keep writes large, little enough to stay in the cache.
const CHUNK: usize = 1 << 16;

impl Data<'_> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Data::F32(values) => values.len(),
            Data::U16(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Little-endian bytes of values `from..to` as `dtype`, 16-bit floats rounded to nearest even.
    fn bytes(&self, dtype: ElementType, from: usize, to: usize) -> Option<Vec<u8>> {
        Some(match (self, dtype) {
            (Data::F32(values), ElementType::F32) => {
                values[from..to].iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            (Data::F32(values), ElementType::BF16) => {
                values[from..to].iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect()
            }
            (Data::F32(values), ElementType::F16) => {
                values[from..to].iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect()
            }
            (Data::U16(values), ElementType::U16) => {
                values[from..to].iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            _ => return None,
        })
    }
}

/// A safetensors file being filled. Tensors may come in any order.
pub(crate) struct Writer<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Writer<'a> {
    /// A file of `length` bytes that begins with `head`: the header and its length.
    pub(crate) fn create(path: &'a Path, head: &[u8], length: usize) -> Result<Writer<'a>> {
        let failure = |error: std::io::Error| Failure::io(format!("{}: {error}", show(path)));
        let file = File::create_new(path).map_err(failure)?;
        file.set_len(length as u64).map_err(failure)?;
        file.write_all_at(head, 0).map_err(failure)?;
        Ok(Writer { path, file })
    }

    /// Writes a tensor where `entry` says, in the type that it says.
    pub(crate) fn tensor(&self, name: &str, data: &Data, entry: &Entry) -> Result<()> {
        let mut offset = entry.offset as u64;
        for from in (0..data.len()).step_by(CHUNK) {
            let to = data.len().min(from + CHUNK);
            let bytes = data.bytes(entry.dtype, from, to).ok_or_else(|| {
                Failure::work(format!(
                    "{}: tensor {name:?} cannot be written as {:?}",
                    show(self.path),
                    entry.dtype
                ))
            })?;
            self.bytes(&bytes, offset)?;
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| Failure::io(format!("{}: {error}", show(self.path))))
    }

    /// Waits until the disk has the file.
    pub(crate) fn finish(self) -> Result<()> {
        self.file.sync_all().map_err(|error| Failure::io(format!("{}: {error}", show(self.path))))
    }
}

/// Writes a new file with the tensors in their order.
///
/// # Errors
/// A tensor whose values do not fill its shape; the disk's.
pub(crate) fn write(
    path: &Path,
    tensors: &[NewTensor],
    dtype: impl Fn(&NewTensor) -> ElementType,
) -> Result<()> {
    let mut header = Map::new();
    // `transformers` reads only files that name a framework here.
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut entries: Vec<Entry> = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for tensor in tensors {
        check_size(tensor, path)?;
        let dtype = dtype(tensor);
        let length = tensor.data.len() * dtype.size();
        let described = json!({
            "dtype": type_name(dtype),
            "shape": tensor.shape,
            "data_offsets": [end, end + length],
        });
        header.insert(tensor.name.to_owned(), described);
        entries.push(Entry { dtype, shape: tensor.shape.to_vec(), offset: end, length });
        end += length;
    }
    let mut text = Value::Object(header).to_string();
    // Padded so that the first tensor is aligned for direct use of the mapped file.
    let padding = (PREFIX + text.len()).next_multiple_of(64) - PREFIX - text.len();
    text.push_str(&" ".repeat(padding));
    let start = PREFIX + text.len();
    let mut head = (text.len() as u64).to_le_bytes().to_vec();
    head.extend_from_slice(text.as_bytes());

    let writer = Writer::create(path, &head, start + end)?;
    for (tensor, entry) in tensors.iter().zip(&mut entries) {
        entry.offset += start;
        writer.tensor(tensor.name, &tensor.data, entry)?;
    }
    writer.finish()
}

/// Whether the values fill the shape; a mistake of the caller, told like any failed work.
pub(crate) fn check_size(tensor: &NewTensor, path: &Path) -> Result<()> {
    let wanted: usize = tensor.shape.iter().product();
    if wanted == tensor.data.len() {
        return Ok(());
    }
    let (name, shape, count) = (tensor.name, tensor.shape, tensor.data.len());
    Err(Failure::work(format!("{}: tensor {name:?} of shape {shape:?} has {count} values", show(path))))
}

fn type_name(dtype: ElementType) -> &'static str {
    match dtype {
        ElementType::F32 => "F32",
        ElementType::BF16 => "BF16",
        ElementType::F16 => "F16",
        ElementType::U16 | ElementType::Other(_) => "U16",
    }
}
