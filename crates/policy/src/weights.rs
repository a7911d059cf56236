//! The tensors of a checkpoint, memory-mapped: one safetensors file, or shards with an index.
//!
//! Mapping instead of reading lets ONNX Runtime, the trainer and the publisher share one copy in the page cache. Published
//! files are never written in place ([`crate::publish`]). Left out: formats other than safetensors (a pickle runs code when
//! it is opened).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use serde_json::Value;

use crate::config::Config;
use crate::decoder::Tensor;
use crate::files::{COPY, exists, io_failure, show};
pub use crate::header::ElementType;
use crate::header::{self, Entry};
use crate::json::read_json;
use crate::mapping::Mapping;

/// The single-file name, and the index that takes its place when there are shards.
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The output head. Some files of models with a tied head hold it as well.
pub(crate) const HEAD: &str = "lm_head.weight";

/// Hint for shards that do not fit together.
const SHARDS: &str =
    "the index and the shards are of different checkpoints or not all there: copy or download them again";

/// One tensor of a mapped checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    pub dtype: ElementType,
    /// Extents, outermost first; elements are row-major and little-endian.
    pub shape: &'a [usize],
    /// The elements; not necessarily aligned.
    pub bytes: &'a [u8],
    /// The file it lies in, canonical (no symlinks).
    pub file: &'a Path,
    /// Bytes from the start of that file.
    pub offset: u64,
}

impl TensorView<'_> {
    /// The elements as f32, converted where the file has a 16-bit type.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.bytes.len() / self.dtype.size()];
        self.read(0, &mut values)?;
        Ok(values)
    }

    /// Fills `values` with the elements from index `from` on, as f32.
    ///
    /// # Errors
    /// The tensor has fewer; or as [`TensorView::to_f32`].
    pub fn read(&self, from: usize, values: &mut [f32]) -> Result<()> {
        let size = self.dtype.size();
        let Some(bytes) = self.bytes.get(from * size..(from + values.len()) * size) else {
            let (wanted, there) = (from + values.len(), self.bytes.len() / size);
            return Err(Failure::data(format!(
                "{}: {wanted} elements of a tensor of {there}",
                show(self.file)
            )));
        };
        let halves = bytes.as_chunks::<2>().0;
        match self.dtype {
            ElementType::F32 => convert(bytes.as_chunks().0, values, f32::from_le_bytes),
            ElementType::BF16 => convert(halves, values, |two| half::bf16::from_le_bytes(two).to_f32()),
            ElementType::F16 => convert(halves, values, |two| half::f16::from_le_bytes(two).to_f32()),
            other => {
                return Err(Failure::data(format!("{}: {other:?} is no type of weights", show(self.file))));
            }
        }
        Ok(())
    }
}

fn convert<const N: usize>(bytes: &[[u8; N]], values: &mut [f32], element: impl Fn([u8; N]) -> f32) {
    values.iter_mut().zip(bytes).for_each(|(value, &bytes)| *value = element(bytes));
}

/// A mapped file and its name.
#[derive(Debug)]
struct Mapped {
    /// Path in the directory (a symlink in a Hugging Face cache).
    found: PathBuf,
    canonical: PathBuf,
    /// Device and number of the inode, which no other file gets while it is mapped.
    inode: (u64, u64),
    map: Mapping,
}

/// All tensors of a checkpoint by name.
#[derive(Debug)]
pub struct Weights {
    files: Vec<Mapped>,
    tensors: BTreeMap<String, (usize, Entry)>,
    /// Parts of those that a decoder takes apart.
    parts: BTreeMap<String, (usize, Entry)>,
}

impl Weights {
    /// Maps `model.safetensors` of a directory, or the shards that its index names.
    ///
    /// # Errors
    /// Missing files; a header that does not describe its file; an index that names a tensor its shard does not hold.
    pub fn open(directory: &Path) -> Result<Weights> {
        let index = directory.join(INDEX);
        let single = directory.join(SINGLE);
        if exists(&single)? {
            Weights::open_file(&single)
        } else if exists(&index)? {
            Weights::open_shards(directory, &index)
        } else {
            Err(Failure::data(format!("{}: no {SINGLE} and no {INDEX}", show(directory)))
                .hint("only safetensors checkpoints are read; save others with safe_serialization"))
        }
    }

    /// The weights of a decoder, checked against its configuration: fused tensors can be read by the names of their parts.
    pub fn of_model(directory: &Path, config: &Config) -> Result<Weights> {
        let weights = Weights::open(directory)?;
        weights.check(config)?;
        Ok(weights.split(config))
    }

    /// Makes fused tensors also readable by the names of their parts. A part is a range of rows, so nothing
    /// is copied.
    pub fn split(mut self, config: &Config) -> Weights {
        for stored in config.decoder().stored().into_iter().filter(|stored| stored.parts.len() > 1) {
            let Some((file, whole)) =
                self.tensors.get(&stored.name).filter(|(_, whole)| whole.shape == stored.shape)
            else {
                continue;
            };
            let mut offset = whole.offset;
            for part in stored.parts {
                let (length, shape) = (part.count() * whole.dtype.size(), part.shape.clone());
                let entry = Entry { dtype: whole.dtype, shape, offset, length };
                self.parts.insert(part.name.clone(), (*file, entry));
                offset += length;
            }
        }
        self
    }

    /// Maps one safetensors file, such as the optimizer's state.
    pub fn open_file(path: &Path) -> Result<Weights> {
        let mut weights = Weights { files: Vec::new(), tensors: BTreeMap::new(), parts: BTreeMap::new() };
        weights.add(path)?;
        Ok(weights)
    }

    fn open_shards(directory: &Path, index: &Path) -> Result<Weights> {
        let value = read_json(index)?;
        let map =
            value.get("weight_map").and_then(Value::as_object).filter(|map| !map.is_empty()).ok_or_else(
                || Failure::data(format!("{}: no weight_map that names a shard", show(index))).hint(SHARDS),
            )?;
        let mut shards = BTreeSet::new();
        for (tensor, shard) in map {
            let name = shard.as_str().unwrap_or_default();
            // A shard outside the directory would be read, and later published, as part of the policy.
            let is_name = name.len() <= 255 && !name.contains(['/', '\\', '\0']);
            if !is_name || !name.ends_with(".safetensors") {
                return Err(Failure::data(format!(
                    "{}: {shard}, the file of tensor {tensor:?}, is not a shard's name",
                    show(index)
                ))
                .hint("shards are .safetensors files in the folder of their index"));
            }
            shards.insert(name);
        }
        let mut weights = Weights { files: Vec::new(), tensors: BTreeMap::new(), parts: BTreeMap::new() };
        for shard in shards {
            weights.add(&directory.join(shard))?;
        }
        for (tensor, shard) in map {
            let held = weights.tensors.get(tensor).map(|(file, _)| weights.files[*file].found.file_name());
            if held.flatten().and_then(|name| name.to_str()) != shard.as_str() {
                return Err(Failure::data(format!(
                    "{}: {shard} does not hold tensor {tensor:?}",
                    show(index)
                ))
                .hint(SHARDS));
            }
        }
        Ok(weights)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let canonical = path.canonicalize().map_err(|error| io_failure(path, &error))?;
        // Opening a pipe would block.
        let metadata = canonical.metadata().map_err(|error| io_failure(path, &error))?;
        if !metadata.is_file() {
            return Err(Failure::data(format!("{}: not a file", show(path))).hint(COPY));
        }
        let file = File::open(&canonical).map_err(|error| io_failure(path, &error))?;
        let map = Mapping::of(&file).map_err(|error| io_failure(path, &error))?;
        let entries = header::parse(&map, path)?;
        for (name, entry) in entries {
            if let Some((other, _)) = self.tensors.insert(name.clone(), (self.files.len(), entry)) {
                return Err(Failure::data(format!(
                    "{}: tensor {name:?} is also in {}",
                    show(path),
                    show(&self.files[other].found)
                ))
                .hint(SHARDS));
            }
        }
        // Ask the open file, because the path may point to another one by now.
        let metadata = file.metadata().map_err(|error| io_failure(path, &error))?;
        let inode = (metadata.dev(), metadata.ino());
        self.files.push(Mapped { found: path.to_owned(), canonical, inode, map });
        Ok(())
    }

    /// Gives back the memory of the pages read so far; the files are read again on the next access. Without
    /// this, a process that has copied its weights holds them twice.
    pub fn release(&self) {
        self.files.iter().for_each(|file| file.map.release());
    }

    /// Returns true if both map the same files, so that values read from one need not be read from the other.
    pub fn is_same_files(&self, other: &Weights) -> bool {
        self.files.iter().map(|file| file.inode).eq(other.files.iter().map(|file| file.inode))
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>> {
        let Some((file, entry)) = self.tensors.get(name).or_else(|| self.parts.get(name)) else {
            let place = self.files.first().map_or_else(String::new, |file| show(&file.found));
            return Err(Failure::data(format!("{place}: tensor {name:?} is missing"))
                .hint("tensors are named like in the Hugging Face model class with its output head"));
        };
        let file = &self.files[*file];
        Ok(TensorView {
            dtype: entry.dtype,
            shape: &entry.shape,
            bytes: &file.map[entry.offset..entry.offset + entry.length],
            file: &file.canonical,
            offset: entry.offset as u64,
        })
    }

    /// One tensor's elements as f32, row-major.
    pub fn to_f32(&self, name: &str) -> Result<Vec<f32>> {
        self.tensor(name)?.to_f32()
    }

    /// Checks names, shapes and types against a configuration. Further tensors are ignored: some checkpoints hold
    /// buffers, and a second copy of a tied head.
    ///
    /// # Errors
    /// A tensor is missing, has another shape, or is no float; a head that is said to be tied differs from the embedding.
    pub fn check(&self, config: &Config) -> Result<()> {
        let decoder = config.decoder();
        let stored = decoder.stored();
        self.check_shapes(stored.iter().map(|stored| (stored.name.as_str(), &stored.shape[..])))?;
        let Some(head) = self.tensor(HEAD).ok().filter(|_| config.tie_word_embeddings) else { return Ok(()) };
        let embedding = self.tensor(config.head_name())?;
        if (head.dtype, head.shape, head.bytes) == (embedding.dtype, embedding.shape, embedding.bytes) {
            return Ok(());
        }
        Err(Failure::data(format!(
            "{}: {HEAD} is not the embedding, with which config.json ties it",
            show(head.file)
        ))
        .hint("set tie_word_embeddings to false in config.json to use it, or remove it from the file"))
    }

    /// Checks that a tensor holds no NaN and no infinity.
    pub fn check_finite(&self, name: &str) -> Result<()> {
        let tensor = self.tensor(name)?;
        match tensor.to_f32()?.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(at) => Err(Failure::data(format!(
                "{}: tensor {name:?} is not finite at element {at}",
                show(tensor.file)
            ))
            .hint("training diverged or the file is damaged; go back to an earlier version")),
        }
    }

    pub(crate) fn check_against<'a>(&self, tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<()> {
        self.check_shapes(tensors.into_iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..])))
    }

    fn check_shapes<'a>(&self, tensors: impl Iterator<Item = (&'a str, &'a [usize])>) -> Result<()> {
        for (name, shape) in tensors {
            let view = self.tensor(name)?;
            if view.shape != shape {
                return Err(Failure::data(format!(
                    "{}: tensor {name:?} has shape {:?}, expected {shape:?}",
                    show(view.file),
                    view.shape
                ))
                .hint("config.json and the weights are of different models"));
            }
            if !view.dtype.is_weight() {
                return Err(Failure::data(format!("{}: tensor {name:?} is not a float", show(view.file)))
                    .hint(header::FLOATS));
            }
        }
        Ok(())
    }

    /// The directory of all weight files after symlinks are resolved, where [`crate::graph`] finds its external data.
    ///
    /// # Errors
    /// Shards that resolve to different directories.
    pub fn folder(&self) -> Result<&Path> {
        let parents: Vec<&Path> = self.files.iter().filter_map(|file| file.canonical.parent()).collect();
        match parents.first() {
            Some(first) if parents.iter().all(|parent| parent == first) => Ok(first),
            _ => Err(Failure::data("the shards resolve to different directories".to_owned())
                .hint("put the shards, or links to files of one directory, together")),
        }
    }

    /// Paths as found in the directory, sorted by name, with the mapped contents.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.files.iter().map(|file| (file.found.as_path(), &file.map[..]))
    }

    /// The tensors that lie in the `index`-th of [`Weights::files`].
    pub(crate) fn tensors_of_file(&self, index: usize) -> impl Iterator<Item = (&str, &Entry)> {
        self.tensors
            .iter()
            .filter(move |(_, (file, _))| *file == index)
            .map(|(name, (_, entry))| (name.as_str(), entry))
    }
}
