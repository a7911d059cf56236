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

/// A kernel and the rows of a head that each of its blocks owns.
struct Blocks {
    kernel: &'static Kernel,
    owned: usize,
    threads: usize,
    /// Shared memory of a block, bytes.
    shared: usize,
}

/// The kernels compiled for heads of up to `width` values.
struct Compiled {
    width: usize,
    forward: Blocks,
    backward_queries: Blocks,
    backward_keys: Blocks,
}

macro_rules! compiled {
    // Keys of a tile in the forward kernel and in the kernel of the queries' gradient; number of keys that a
    // block of the keys' gradient kernel owns, which is also its number of queries per tile.
    ($width:literal, $keys:expr, $owned:expr, $forward:ident, $by_keys:ident, $by_queries:ident) => {{
        // Bytes of a row in shared memory.
        const ROW: usize = ($width + 8) * BF16;
        let (forward, backward) = $keys;
        Compiled {
            width: $width,
            forward: Blocks {
                kernel: &kernels::$forward,
                owned: TILE,
                threads: 128,
                shared: (TILE + 4 * forward) * ROW,
            },
            backward_queries: Blocks {
                kernel: &kernels::$by_queries,
                owned: TILE,
                threads: 128,
                shared: (2 * TILE + 4 * backward) * ROW,
            },
            backward_keys: Blocks {
                kernel: &kernels::$by_keys,
                owned: $owned,
                threads: 4 * $owned,
                shared: 4 * $owned * ROW + 2 * $owned * ($owned + 8) * BF16 + 3 * $owned * size_of::<f32>(),
            },
        }
    }};
}

static COMPILED: [Compiled; 5] = [
    compiled!(16, (64, 64), 64, ATTENTION_16, ATTENTION_KEYS_16, ATTENTION_QUERIES_16),
    compiled!(32, (64, 64), 64, ATTENTION_32, ATTENTION_KEYS_32, ATTENTION_QUERIES_32),
    compiled!(64, (64, 64), 64, ATTENTION_64, ATTENTION_KEYS_64, ATTENTION_QUERIES_64),
    compiled!(128, (64, 32), 64, ATTENTION_128, ATTENTION_KEYS_128, ATTENTION_QUERIES_128),
    compiled!(256, (32, 16), 32, ATTENTION_256, ATTENTION_KEYS_256, ATTENTION_QUERIES_256),
];

/// Heads of 128, which most models have, where Hopper's products of a warpgroup are.
static HOPPER: Compiled = {
    const ROW: usize = 128 * BF16;
    const OWNED: usize = 2 * TILE;
    Compiled {
        width: 128,
        forward: Blocks {
            kernel: &kernels::ATTENTION_128_SM90A,
            owned: OWNED,
            threads: 256,
            shared: (OWNED + 4 * OWNED) * ROW + 2 * OWNED * size_of::<i32>(),
        },
        backward_queries: Blocks {
            kernel: &kernels::ATTENTION_QUERIES_128_SM90A,
            owned: OWNED,
            threads: 256,
            shared: (2 * OWNED + 4 * TILE) * ROW + 2 * TILE * size_of::<i32>(),
        },
        backward_keys: Blocks {
            kernel: &kernels::ATTENTION_KEYS_128_SM90A,
            owned: OWNED,
            threads: 256,
            shared: (2 * OWNED + 4 * TILE) * ROW + 6 * TILE * size_of::<f32>(),
        },
    }
};

/// Widest head that attention is compiled for.
pub(super) const MAX_WIDTH: usize = 256;

impl Compiled {
    fn of<D: Device>(device: &D, heads: Heads) -> &'static Compiled {
        if heads.width == HOPPER.width && device.runs(HOPPER.forward.kernel.source()) {
            return &HOPPER;
        }
        COMPILED
            .iter()
            .find(|compiled| compiled.width >= heads.width)
            .unwrap_or(&COMPILED[COMPILED.len() - 1])
    }
}

impl Blocks {
    /// Launches blocks for `rows` rows of each head.
    fn launch<D: Device>(
        &self,
        device: &mut D,
        rows: usize,
        heads: usize,
        arguments: &[Argument],
    ) -> Result<()> {
        let shape = Shape {
            grid: [rows.div_ceil(self.owned) as u32, heads as u32, 1],
            block: [self.threads as u32, 1, 1],
            shared: self.shared as u32,
        };
        launch(device, self.kernel, shape, arguments)
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

/// See [`crate::backend::Backend::attention`].
pub(super) fn forward<D: Device>(
    device: &mut D,
    batch: &DeviceBatch,
    op: &Attention<Values>,
    out: &Values,
    lse: &Values,
) -> Result<()> {
    let compiled = Compiled::of(device, op.heads);
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
    compiled.forward.launch(device, batch.count(op.rows), op.heads.queries, &arguments)
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
    let compiled = Compiled::of(device, op.heads);
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
    compiled.backward_queries.launch(device, rows, heads.queries, &arguments)?;
    let d_values = gradients.d_key_value.half()?.slice(key_width(heads)..);
    let mut arguments: Vec<Argument> = vec![gradients.d_keys.single()?.into(), d_values.into()];
    arguments.extend(inputs.iter().chain(&tail));
    compiled.backward_keys.launch(device, batch.tokens, heads.keys, &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_fits_the_smallest_gpu() {
        for compiled in COMPILED.iter().chain([&HOPPER]) {
            for blocks in [&compiled.forward, &compiled.backward_queries, &compiled.backward_keys] {
                let most = blocks.kernel.source().shared_limit() as usize;
                assert!(blocks.shared <= most, "{}: {} bytes", blocks.kernel.name(), blocks.shared);
            }
        }
    }
}
