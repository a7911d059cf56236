//! Launches of the attention kernels: which compiled width serves a head, and what each needs of shared memory.

use device::{Argument, Buffer, Device, Kernel, Shape};
use half::bf16;
use record::failure::Result;

use super::device_batch::{DeviceBatch, Table};
use super::launch;
use super::values::Values;
use crate::backend::{Attention, AttentionGradients, AttentionOutput, Heads};
use crate::kernels;

/// Rows of a tile of queries or of keys.
const TILE: usize = 64;
const BF16: usize = size_of::<bf16>();

/// The kernels compiled for heads of up to `width` values.
struct Compiled {
    width: usize,
    /// Keys of a tile in the forward kernel and in the kernel of the queries' gradient.
    keys: (usize, usize),
    /// Keys that a block of the keys' gradient kernel owns, and as many queries of a tile.
    owned: usize,
    forward: &'static Kernel,
    backward_keys: &'static Kernel,
    backward_queries: &'static Kernel,
}

macro_rules! compiled {
    ($width:literal, $keys:expr, $owned:expr, $forward:ident, $by_keys:ident, $by_queries:ident) => {
        Compiled {
            width: $width,
            keys: $keys,
            owned: $owned,
            forward: &kernels::$forward,
            backward_keys: &kernels::$by_keys,
            backward_queries: &kernels::$by_queries,
        }
    };
}

static COMPILED: [Compiled; 5] = [
    compiled!(16, (64, 64), 64, ATTENTION_16, ATTENTION_KEYS_16, ATTENTION_QUERIES_16),
    compiled!(32, (64, 64), 64, ATTENTION_32, ATTENTION_KEYS_32, ATTENTION_QUERIES_32),
    compiled!(64, (64, 64), 64, ATTENTION_64, ATTENTION_KEYS_64, ATTENTION_QUERIES_64),
    compiled!(128, (64, 32), 64, ATTENTION_128, ATTENTION_KEYS_128, ATTENTION_QUERIES_128),
    compiled!(256, (32, 16), 32, ATTENTION_256, ATTENTION_KEYS_256, ATTENTION_QUERIES_256),
];

/// Widest head that attention is compiled for.
pub(super) const MAX_WIDTH: usize = 256;

impl Compiled {
    fn of(heads: Heads) -> &'static Compiled {
        COMPILED
            .iter()
            .find(|compiled| compiled.width >= heads.width)
            .unwrap_or(&COMPILED[COMPILED.len() - 1])
    }

    /// Bytes of a row in shared memory.
    fn row(&self) -> usize {
        (self.width + 8) * BF16
    }

    /// Shared memory of a kernel that owns queries: `tiles` tiles of them, and tiles of `keys` keys.
    fn shared_by_queries(&self, tiles: usize, keys: usize) -> u32 {
        ((tiles * TILE + 4 * keys) * self.row()) as u32
    }

    fn shared_by_keys(&self) -> u32 {
        let owned = self.owned;
        (4 * owned * self.row() + 2 * owned * (owned + 8) * BF16 + 3 * owned * size_of::<f32>()) as u32
    }
}

/// Values of a row of the key and value projection before the values begin.
fn key_width(heads: Heads) -> usize {
    heads.keys * heads.width
}

/// The last arguments of every kernel.
fn tail<'a>(batch: &'a DeviceBatch, op: &Attention<'_, Values>) -> Result<[Argument<'a>; 9]> {
    let integer = |value: usize| Argument::from(value as i32);
    let Attention { rows, heads, .. } = *op;
    Ok([
        batch.table(Table::Ends)?.into(),
        batch.table(Table::Tiles)?.into(),
        integer(batch.count(rows)),
        integer(batch.tokens),
        integer(heads.queries),
        integer(heads.keys),
        integer(heads.width),
        integer(2 * key_width(heads)),
        (1.0 / (heads.width as f32).sqrt()).into(),
    ])
}

/// A block of `threads` threads for each `owned` rows of each head.
fn shape(rows: usize, heads: usize, owned: usize, threads: usize, shared: u32) -> Shape {
    Shape { grid: [rows.div_ceil(owned) as u32, heads as u32, 1], block: [threads as u32, 1, 1], shared }
}

/// See [`crate::backend::Backend::attention`].
pub(super) fn forward<D: Device>(
    device: &mut D,
    batch: &DeviceBatch,
    op: &Attention<Values>,
    out: &Values,
    lse: &Values,
) -> Result<()> {
    let compiled = Compiled::of(op.heads);
    let mut arguments: Vec<Argument> = vec![
        out.half()?.into(),
        lse.single()?.into(),
        op.queries.half()?.into(),
        op.keys.half()?.into(),
        op.key_value.half()?.slice(key_width(op.heads)..).into(),
        batch.nodes(op.rows)?.into(),
        batch.first_tiles(op.rows)?.into(),
    ];
    arguments.extend(tail(batch, op)?);
    let shared = compiled.shared_by_queries(1, compiled.keys.0);
    let shape = shape(batch.count(op.rows), op.heads.queries, TILE, 128, shared);
    launch(device, compiled.forward, shape, &arguments)
}

/// See [`crate::backend::Backend::attention_backward`]. `deltas` has one value for each row and query head.
pub(super) fn backward<D: Device>(
    device: &mut D,
    batch: &DeviceBatch,
    op: &Attention<Values>,
    output: AttentionOutput<Values>,
    gradients: AttentionGradients<Values>,
    deltas: &Buffer<f32>,
) -> Result<()> {
    let compiled = Compiled::of(op.heads);
    let (rows, heads) = (batch.count(op.rows), op.heads);
    let (out, d_out) = (output.out.half()?, output.d_out.half()?);
    let count = (rows * heads.queries) as u64;
    let arguments = [deltas.into(), d_out.into(), out.into(), count.into(), (heads.width as i32).into()];
    device.launch(&kernels::ATTENTION_DELTAS, Shape::values(count * 32), &arguments)?;
    let inputs: [Argument; 7] = [
        d_out.into(),
        op.queries.half()?.into(),
        op.keys.half()?.into(),
        op.key_value.half()?.slice(key_width(heads)..).into(),
        output.lse.single()?.into(),
        deltas.into(),
        batch.nodes(op.rows)?.into(),
    ];
    let tail = tail(batch, op)?;
    // Queries first: their kernel corrects the deltas that the keys' kernel reads.
    let mut arguments: Vec<Argument> = vec![gradients.d_queries.single()?.into()];
    arguments.extend(inputs.iter().chain(&[batch.first_tiles(op.rows)?.into()]).chain(&tail));
    let by_queries = shape(rows, heads.queries, TILE, 128, compiled.shared_by_queries(2, compiled.keys.1));
    launch(device, compiled.backward_queries, by_queries, &arguments)?;
    let d_values = gradients.d_key_value.half()?.slice(key_width(heads)..);
    let mut arguments: Vec<Argument> = vec![gradients.d_keys.single()?.into(), d_values.into()];
    arguments.extend(inputs.iter().chain(&tail));
    let owned = compiled.owned;
    let by_keys = shape(batch.tokens, heads.keys, owned, 4 * owned, compiled.shared_by_keys());
    launch(device, compiled.backward_keys, by_keys, &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_fits_the_smallest_gpu() {
        for compiled in &COMPILED {
            let (forward, backward) = compiled.keys;
            for (what, bytes) in [
                ("forward", compiled.shared_by_queries(1, forward)),
                ("queries", compiled.shared_by_queries(2, backward)),
                ("keys", compiled.shared_by_keys()),
            ] {
                assert!(bytes <= device::SHARED_LIMIT, "{what} of {}: {bytes} bytes", compiled.width);
            }
        }
    }
}
