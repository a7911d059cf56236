//! Writes safetensors files: new ones, and new values in the layout of an existing one.
//!
//! A file is streamed from its first byte to its last. Values that lie elsewhere (on a device, or in another type) are
//! requested piece by piece, and the digest is computed on the way, so no tensor need be in memory as a whole.

use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::{Map, Value, json};

use crate::files::show;
use crate::header::{self, Entry, PREFIX};
use crate::weights::{ElementType, Weights};
use crate::write_behind::WriteBehind;

/// Fills a slice with a tensor's values from this index on.
pub type Read<'a, T> = dyn Fn(usize, &mut [T]) -> Result<()> + 'a;

/// Values of a tensor to write.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// Values in memory.
    F32(&'a [f32]),
    /// Values requested piece by piece.
    Pieces(&'a Read<'a, f32>),
    /// The bits of 16-bit values that are of the file's type already, requested piece by piece.
    Bits(&'a Read<'a, u16>),
    /// The lower halves of f32 weights whose upper halves are published as bf16, requested piece by piece.
    LowerHalves(&'a Read<'a, u16>),
}

#[derive(Clone, Copy)]
pub struct NewTensor<'a> {
    /// Hugging Face's name.
    pub name: &'a str,
    /// Extents, outermost first.
    pub shape: &'a [usize],
    /// Row-major values.
    pub data: Data<'a>,
}

impl NewTensor<'_> {
    /// Number of values.
    fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Values per piece, 4 MiB in f32: small enough for any machine, large enough for full bandwidth from a device.
pub const PIECE: usize = 1 << 20;

/// A safetensors file being written from its beginning to its end.
pub(crate) struct Writer<'a> {
    path: &'a Path,
    file: WriteBehind,
    values: Vec<f32>,
    halves: Vec<u16>,
}

impl<'a> Writer<'a> {
    /// A file of about `length` bytes that begins with `head`: the header and its length. Its bytes are added to `digest`.
    fn create(path: &'a Path, head: &[u8], length: usize, digest: blake3::Hasher) -> Result<Writer<'a>> {
        let file = WriteBehind::create(path, length as u64, digest)?;
        let mut writer = Writer { path, file, values: Vec::new(), halves: Vec::new() };
        writer.bytes(head)?;
        Ok(writer)
    }

    pub(crate) fn tensor(&mut self, tensor: &NewTensor, dtype: ElementType) -> Result<()> {
        let length = tensor.len();
        for from in (0..length).step_by(PIECE) {
            let count = PIECE.min(length - from);
            let mut bytes = self.file.buffer();
            let known = match tensor.data {
                Data::F32(values) => convert(&values[from..from + count], dtype, &mut bytes),
                Data::Pieces(read) => {
                    self.values.resize(count, 0.0);
                    read(from, &mut self.values)?;
                    convert(&self.values, dtype, &mut bytes)
                }
                Data::LowerHalves(read) | Data::Bits(read) => {
                    self.halves.resize(count, 0);
                    read(from, &mut self.halves)?;
                    fill(&mut bytes, self.halves.iter().map(|half| half.to_le_bytes()));
                    let is_weight = matches!(dtype, ElementType::BF16 | ElementType::F16);
                    if matches!(tensor.data, Data::Bits(_)) { is_weight } else { dtype == ElementType::U16 }
                }
            };
            if !known {
                let (place, name) = (show(self.path), tensor.name);
                return Err(Failure::work(format!(
                    "{place}: tensor {name:?} cannot be written as {dtype:?}"
                )));
            }
            self.file.write(bytes)?;
        }
        Ok(())
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        bytes.chunks(size_of::<f32>() * PIECE).try_for_each(|piece| {
            let mut buffer = self.file.buffer();
            buffer.clear();
            buffer.extend_from_slice(piece);
            self.file.write(buffer)
        })
    }
}

/// Converts values to bytes, 16-bit floats rounded to nearest even; returns whether `dtype` is a type of weights.
pub(crate) fn convert(values: &[f32], dtype: ElementType, bytes: &mut Vec<u8>) -> bool {
    match dtype {
        ElementType::F32 => fill(bytes, values.iter().map(|value| value.to_le_bytes())),
        ElementType::BF16 => {
            fill(bytes, values.iter().map(|&value| half::bf16::from_f32(value).to_le_bytes()))
        }
        ElementType::F16 => fill(bytes, values.iter().map(|&value| half::f16::from_f32(value).to_le_bytes())),
        ElementType::U16 | ElementType::Other(_) => return false,
    }
    true
}

fn fill<const N: usize>(bytes: &mut Vec<u8>, values: impl ExactSizeIterator<Item = [u8; N]>) {
    bytes.resize(values.len() * N, 0);
    bytes.as_chunks_mut::<N>().0.iter_mut().zip(values).for_each(|(place, value)| *place = value);
}

/// Writes a new file with the tensors in their order; returns the digest of its bytes.
///
/// # Errors
/// A tensor whose values do not fill its shape; the disk's.
pub(crate) fn write(
    path: &Path,
    tensors: &[NewTensor],
    dtype: impl Fn(&NewTensor) -> ElementType,
) -> Result<String> {
    let mut header = Map::new();
    // `transformers` reads only files that name a framework here.
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut types: Vec<ElementType> = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for tensor in tensors {
        check_size(tensor, path)?;
        let dtype = dtype(tensor);
        let length = tensor.len() * dtype.size();
        let described = json!({
            "dtype": dtype.name(),
            "shape": tensor.shape,
            "data_offsets": [end, end + length],
        });
        header.insert(tensor.name.to_owned(), described);
        types.push(dtype);
        end += length;
    }
    let mut text = Value::Object(header).to_string();
    // Padded so that the first tensor is aligned for direct use of the mapped file.
    let padding = (PREFIX + text.len()).next_multiple_of(64) - PREFIX - text.len();
    text.push_str(&" ".repeat(padding));
    let mut head = (text.len() as u64).to_le_bytes().to_vec();
    head.extend_from_slice(text.as_bytes());

    let mut writer = Writer::create(path, &head, head.len() + end, blake3::Hasher::new())?;
    tensors.iter().zip(types).try_for_each(|(tensor, dtype)| writer.tensor(tensor, dtype))?;
    Ok(writer.file.finish()?.finalize().to_hex().to_string())
}

/// Writes the files of a checkpoint anew into a directory, with the same headers: tensors that `tensor` writes, of which it
/// says so, and the others as they are. Returns the digest of the bytes.
pub(crate) fn rewrite(
    source: &Weights,
    directory: &Path,
    mut tensor: impl FnMut(&mut Writer, &str, &Entry) -> Result<bool>,
) -> Result<String> {
    let mut digest = blake3::Hasher::new();
    for (index, (path, old)) in source.files().enumerate() {
        let path = directory.join(path.file_name().unwrap_or_default());
        let start = header::data_start(old, &path)?;
        // They fill the file without gaps: any other header is refused when it is read.
        let mut entries: Vec<(&str, &Entry)> = source.tensors_of_file(index).collect();
        entries.sort_by_key(|(_, entry)| (entry.offset, entry.length));
        let mut writer = Writer::create(&path, &old[..start], old.len(), digest)?;
        for (name, entry) in entries {
            if !tensor(&mut writer, name, entry)? {
                writer.bytes(&old[entry.offset..entry.offset + entry.length])?;
            }
        }
        digest = writer.file.finish()?;
    }
    Ok(digest.finalize().to_hex().to_string())
}

/// Checks that the values fill the shape.
pub(crate) fn check_size(tensor: &NewTensor, path: &Path) -> Result<()> {
    let (name, shape) = (tensor.name, tensor.shape);
    // Pieces are requested as the shape says.
    let Data::F32(values) = tensor.data else { return Ok(()) };
    let count = values.len();
    if count == tensor.len() {
        return Ok(());
    }
    Err(Failure::work(format!("{}: tensor {name:?} of shape {shape:?} has {count} values", show(path))))
}
