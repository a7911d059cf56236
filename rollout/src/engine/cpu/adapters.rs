//! Low-rank adapters (LoRA, arXiv 2106.09685) over one base model.
//!
//! The base's matrix products are computed once for all rows. Before them a custom operator computes
//! `B·(A·x)` of each row, with the adapter of the row's group, and the products add to that, in the order of
//! training. So roles that are adapters of one base share its weights, session and batches (as in Punica,
//! arXiv 2310.18547, and S-LoRA, arXiv 2311.03285). Adapters are not merged: the base in memory is the one on
//! disk. The sum for a row does not depend on its neighbors.

use gemm::{Accumulate, Isa, Packed, Packing, Precision, Scratch, View, ViewMut};
use policy::adapter::Adapter as Description;
use policy::config::Config;
use policy::decoder::Site;
use policy::directory::Policy;
use record::failure::{Failure, Result};

/// An adapter's factors for the projections of a site that it adapts.
#[derive(Debug)]
pub struct Factors {
    /// Their A, `[inputs, parts * rank]` as one right operand.
    a: Packed,
    /// For each part, its first column in the site's output, and its B, `[rank, outputs]`, multiplied by the
    /// scale.
    parts: Vec<(usize, Packed)>,
}

/// One adapter, ready to run.
#[derive(Debug)]
pub struct Adapter {
    /// By layer and site.
    factors: Vec<[Option<Factors>; 4]>,
}

impl Adapter {
    /// Reads the adapter of a policy that is one, for products of a precision and an instruction set.
    pub fn load(policy: &Policy, config: &Config, precision: Precision, isa: Isa) -> Result<Adapter> {
        let (description, weights) = policy
            .adapter()?
            .ok_or_else(|| Failure::work(format!("{}: not an adapter", policy.files.display())))?;
        let (rank, scale) = (description.rank, description.scale());
        let pack = |values: &[f32], extent| pack(values, extent, precision, isa);
        let mut factors = Vec::with_capacity(config.num_layers);
        for layer in 0..config.num_layers {
            let mut sites: [Option<Factors>; 4] = Default::default();
            for (factors, site) in sites.iter_mut().zip(Site::ALL) {
                let (mut stacked, mut parts, mut offset) = (Vec::new(), Vec::new(), 0);
                let fused = site.fused().filter(|fused| description.targets.contains(fused));
                let targets = fused.as_ref().map_or(site.targets(), std::slice::from_ref);
                for &target in targets {
                    let (_, outputs) = target.extent(config);
                    if description.targets.contains(&target) {
                        let [a, b] = Description::names(layer, target);
                        let mut b = weights.to_f32(&b)?;
                        b.iter_mut().for_each(|value| *value *= scale);
                        stacked.append(&mut weights.to_f32(&a)?);
                        parts.push((offset, pack(&b, [rank, outputs])));
                    }
                    offset += outputs;
                }
                if !parts.is_empty() {
                    let (inputs, _) = targets[0].extent(config);
                    *factors = Some(Factors { a: pack(&stacked, [inputs, parts.len() * rank]), parts });
                }
            }
            factors.push(sites);
        }
        Ok(Adapter { factors })
    }

    pub fn factors(&self, layer: usize, site: usize) -> Option<&Factors> {
        self.factors[layer][site].as_ref()
    }
}

/// A right operand `[inner, columns]` from rows for its columns.
fn pack(values: &[f32], [inner, columns]: [usize; 2], precision: Precision, isa: Isa) -> Packed {
    let mut packing = Packing::new(isa, precision, [inner, columns]);
    while let Some(band) = packing.wanted() {
        packing.push(View::new(&values[band.start * inner..], inner).transposed());
    }
    packing.finish()
}

impl Factors {
    /// Returns true if they read and write rows of these widths.
    pub fn fits(&self, inputs: usize, outputs: usize) -> bool {
        self.a.inner() == inputs && self.parts.iter().all(|(first, b)| first + b.columns() <= outputs)
    }

    /// Adds `B·(A·x)` to `rows` rows of `y`, `width` values each; `inner` is scratch.
    pub fn add(
        &self,
        scratch: &mut Scratch,
        inner: &mut Vec<f32>,
        rows: usize,
        x: &[f32],
        y: &mut [f32],
        width: usize,
    ) {
        let stacked = self.a.columns();
        inner.resize(inner.len().max(rows * stacked), 0.0);
        let x = View::new(x, self.a.inner());
        gemm::multiply_packed(scratch, rows, x, &self.a, Accumulate::Zero, ViewMut::new(inner, stacked));
        for (index, (first, b)) in self.parts.iter().enumerate() {
            let own = View::new(&inner[index * b.inner()..], stacked);
            let y = ViewMut::new(&mut y[*first..], width);
            gemm::multiply_packed(scratch, rows, own, b, Accumulate::Result, y);
        }
    }
}
