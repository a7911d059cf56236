//! Launches of the attention kernels: which compiled width serves a head, and what each needs of shared memory.

use device::{Argument, Device, Kernel, Shape, Slice};
use half::bf16;
use record::failure::Result;

use super::batch::Prepared;
use crate::backend::{Heads, Rows};
use crate::kernels;

/// Rows of a tile of queries or of keys.
const TILE: usize = 64;
const BF16: usize = size_of::<bf16>();

/// The kernels compiled for heads of up to `width` values.
struct Compiled {
    width: usize,
    /// Keys that the forward pass takes at once, and the kernel of the queries' gradient.
    keys: (usize, usize),
    /// Keys that a block of the kernel of their gradient owns, and as many queries that it takes at once.
    owned: usize,
    forward: &'static Kernel,
    backward_keys: &'static Kernel,
    backward_queries: &'static Kernel,
}

static COMPILED: [Compiled; 5] = [
    Compiled {
        width: 16,
        keys: (64, 64),
        owned: 64,
        forward: &kernels::ATTENTION_16,
        backward_keys: &kernels::ATTENTION_KEYS_16,
        backward_queries: &kernels::ATTENTION_QUERIES_16,
    },
    Compiled {
        width: 32,
        keys: (64, 64),
        owned: 64,
        forward: &kernels::ATTENTION_32,
        backward_keys: &kernels::ATTENTION_KEYS_32,
        backward_queries: &kernels::ATTENTION_QUERIES_32,
    },
    Compiled {
        width: 64,
        keys: (64, 64),
        owned: 64,
        forward: &kernels::ATTENTION_64,
        backward_keys: &kernels::ATTENTION_KEYS_64,
        backward_queries: &kernels::ATTENTION_QUERIES_64,
    },
    Compiled {
        width: 128,
        keys: (64, 32),
        owned: 64,
        forward: &kernels::ATTENTION_128,
        backward_keys: &kernels::ATTENTION_KEYS_128,
        backward_queries: &kernels::ATTENTION_QUERIES_128,
    },
    Compiled {
        width: 256,
        keys: (32, 16),
        owned: 32,
        forward: &kernels::ATTENTION_256,
        backward_keys: &kernels::ATTENTION_KEYS_256,
        backward_queries: &kernels::ATTENTION_QUERIES_256,
    },
];

/// Widest head that attention is compiled for.
pub(super) const WIDEST: usize = 256;

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

    /// Shared memory of a kernel that owns queries, keeps `tiles` tiles of them, and takes so many keys at once.
    fn shared_by_queries(&self, tiles: usize, keys: usize) -> u32 {
        ((tiles * TILE + 4 * keys) * self.row()) as u32
    }

    fn shared_by_keys(&self) -> u32 {
        let owned = self.owned;
        (4 * owned * self.row() + 2 * owned * (owned + 8) * BF16 + 3 * owned * size_of::<f32>()) as u32
    }
}

/// What attention reads. Values are the second half of each row of `projection`.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub batch: &'a Prepared,
    pub rows: Rows,
    pub heads: Heads,
    pub queries: Slice<'a, bf16>,
    pub keys: Slice<'a, bf16>,
    pub projection: Slice<'a, bf16>,
}

impl<'a> Inputs<'a> {
    fn value_stride(&self) -> usize {
        2 * self.heads.keys * self.heads.width
    }

    /// The part of a buffer shaped as the projection that values, or their gradients, are in.
    fn values(&self, projection: Slice<'a, bf16>) -> Slice<'a, bf16> {
        projection.slice(self.heads.keys * self.heads.width..)
    }

    /// The arguments that every kernel ends with.
    fn tail(&self) -> Result<[Argument<'a>; 11]> {
        let integer = |value: usize| Argument::from(value as i32);
        Ok([
            self.batch.nodes(self.rows)?.into(),
            self.batch.ends()?.into(),
            self.batch.tile_last()?.into(),
            self.batch.tile_first()?.into(),
            integer(self.batch.count(self.rows)),
            integer(self.batch.tokens),
            integer(self.heads.queries),
            integer(self.heads.keys),
            integer(self.heads.width),
            integer(self.value_stride()),
            (1.0 / (self.heads.width as f32).sqrt()).into(),
        ])
    }

    /// Blocks that own `owned` rows of a head each, `threads` of them.
    fn shape(&self, blocks: (usize, usize), owned: usize, threads: usize, shared: u32) -> Shape {
        let grid = [blocks.0.div_ceil(owned) as u32, blocks.1 as u32, 1];
        Shape { grid, block: [threads as u32, 1, 1], shared }
    }
}

/// The forward pass.
pub(super) fn forward<D: Device>(
    device: &mut D,
    inputs: Inputs<'_>,
    out: Slice<'_, bf16>,
    normalizers: Slice<'_, f32>,
) -> Result<()> {
    let compiled = Compiled::of(inputs.heads);
    let mut arguments: Vec<Argument<'_>> = vec![
        out.into(),
        normalizers.into(),
        inputs.queries.into(),
        inputs.keys.into(),
        inputs.values(inputs.projection).into(),
    ];
    arguments.extend(inputs.tail()?);
    let (rows, heads) = (inputs.batch.count(inputs.rows), inputs.heads.queries);
    let shape = inputs.shape((rows, heads), TILE, 128, compiled.shared_by_queries(1, compiled.keys.0));
    device.launch(compiled.forward, shape, &arguments)
}

/// What the forward pass left behind and the gradient that arrives.
#[derive(Clone, Copy)]
pub(super) struct Outputs<'a> {
    pub out: Slice<'a, bf16>,
    pub normalizers: Slice<'a, f32>,
    pub d_out: Slice<'a, bf16>,
    /// Room for one value a row and head.
    pub deltas: Slice<'a, f32>,
}

/// The gradients by queries, keys and values; the last go where values are in a projection.
pub(super) fn backward<D: Device>(
    device: &mut D,
    inputs: Inputs<'_>,
    outputs: Outputs<'_>,
    (d_queries, d_keys, d_projection): (Slice<'_, f32>, Slice<'_, f32>, Slice<'_, bf16>),
) -> Result<()> {
    let compiled = Compiled::of(inputs.heads);
    let Outputs { out, normalizers, d_out, deltas } = outputs;
    let (rows, heads) = (inputs.batch.count(inputs.rows), inputs.heads);
    let count = (rows * heads.queries) as u64;
    if count > 0 {
        let arguments = [deltas.into(), d_out.into(), out.into(), count.into(), (heads.width as i32).into()];
        device.launch(&kernels::ATTENTION_DELTAS, Shape::values(count * 32), &arguments)?;
    }
    let middle: [Argument<'_>; 6] = [
        d_out.into(),
        inputs.queries.into(),
        inputs.keys.into(),
        inputs.values(inputs.projection).into(),
        normalizers.into(),
        deltas.into(),
    ];
    let tail = inputs.tail()?;
    // Queries first: they mend the deltas that keys read.
    if count > 0 {
        let mut arguments: Vec<Argument<'_>> = vec![d_queries.into()];
        arguments.extend(middle);
        arguments.extend(tail);
        let shape =
            inputs.shape((rows, heads.queries), TILE, 128, compiled.shared_by_queries(2, compiled.keys.1));
        device.launch(compiled.backward_queries, shape, &arguments)?;
    }
    let d_values = d_projection.slice(heads.keys * heads.width..);
    let mut arguments: Vec<Argument<'_>> = vec![d_keys.into(), d_values.into()];
    arguments.extend(middle);
    arguments.extend(tail);
    let shape = inputs.shape(
        (inputs.batch.tokens, heads.keys),
        compiled.owned,
        4 * compiled.owned,
        compiled.shared_by_keys(),
    );
    device.launch(compiled.backward_keys, shape, &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_fits_the_smallest_card() {
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
