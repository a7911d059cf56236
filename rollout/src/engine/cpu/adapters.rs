//! Low-rank adapters (LoRA, arXiv 2106.09685) over one base model.
//!
//! The base's matrix products are computed once for all rows. Then a custom operator adds `B·(A·x)` to each row, with the
//! adapter of the row's group, so roles that are adapters of one base share its weights, session and batches (as in Punica,
//! arXiv 2310.18547, and S-LoRA, arXiv 2311.03285). Nothing is merged: the base in memory is the one on disk. What is
//! added to a row does not depend on its neighbors.

use super::lanes::Lanes;
use policy::adapter::Adapter as Description;
use policy::config::Config;
use policy::decoder::Site;
use policy::directory::Policy;
use record::failure::{Failure, Result};

/// An adapter's factors for one projection, some columns of a site's output.
#[derive(Debug, Clone)]
pub struct Part {
    /// The first column.
    offset: usize,
    /// `[rank][inputs]`.
    a: Vec<f32>,
    /// `[rank][outputs]`: B transposed, so that it is read in order; the scale is in it.
    b: Vec<f32>,
}

/// One adapter, ready to run.
#[derive(Debug, Clone)]
pub struct Adapter {
    rank: usize,
    /// By layer and site.
    parts: Vec<[Vec<Part>; 4]>,
}

impl Adapter {
    /// Reads the adapter of a policy that is one.
    pub fn load(policy: &Policy, config: &Config) -> Result<Adapter> {
        let (description, weights) = policy
            .adapter(config)?
            .ok_or_else(|| Failure::work(format!("{}: not an adapter", policy.files.display())))?;
        let mut parts = Vec::with_capacity(config.num_layers);
        for layer in 0..config.num_layers {
            let mut sites: [Vec<Part>; 4] = Default::default();
            for (parts, site) in sites.iter_mut().zip(Site::ALL) {
                let mut offset = 0;
                let fused = site.fused().filter(|fused| description.targets.contains(fused));
                let targets = fused.as_ref().map_or(site.targets(), std::slice::from_ref);
                for &target in targets {
                    let (_, outputs) = target.extent(config);
                    if description.targets.contains(&target) {
                        let [a, b] = Description::names(layer, target);
                        let (a, b) = (weights.to_f32(&a)?, weights.to_f32(&b)?);
                        let (rank, scale) = (description.rank, description.scale());
                        let transposed =
                            (0..rank * outputs).map(|at| scale * b[at % outputs * rank + at / outputs]);
                        let b = transposed.collect();
                        parts.push(Part { offset, a, b });
                    }
                    offset += outputs;
                }
            }
            parts.push(sites);
        }
        Ok(Adapter { rank: description.rank, parts })
    }

    /// What it adds at a site of a layer.
    pub fn parts(&self, layer: usize, site: usize) -> &[Part] {
        &self.parts[layer][site]
    }

    /// The inner width of its factors.
    pub fn rank(&self) -> usize {
        self.rank
    }
}

impl Part {
    /// Whether it reads and writes rows of these widths.
    pub fn fits(&self, rank: usize, inputs: usize, outputs: usize) -> bool {
        self.a.len() == rank * inputs && self.offset + self.b.len() / rank <= outputs
    }
}

/// `y[offset..] += B·(A·x)` for one row.
///
/// # Safety
///
/// As for every method of [`Lanes`]; `x` has the inputs of `part` and `y` its columns.
#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the factors have `rank` rows of these widths; the rest is the caller's promise"
)]
pub unsafe fn add<S: Lanes>(part: &Part, rank: usize, x: *const f32, y: *mut f32) {
    let (inputs, outputs) = (part.a.len() / rank, part.b.len() / rank);
    let y = y.add(part.offset);
    for index in 0..rank {
        let (a, b) = (part.a.as_ptr().add(index * inputs), part.b.as_ptr().add(index * outputs));
        let whole = inputs / 16 * 16;
        let mut sum = S::splat(0.0);
        for at in (0..whole).step_by(16) {
            sum = S::load(a.add(at)).fma(S::load(x.add(at)), sum);
        }
        let mut inner = sum.sum();
        for at in whole..inputs {
            inner += *a.add(at) * *x.add(at);
        }
        let (factor, whole) = (S::splat(inner), outputs / 16 * 16);
        for at in (0..whole).step_by(16) {
            factor.fma(S::load(b.add(at)), S::load(y.add(at))).store(y.add(at));
        }
        for at in whole..outputs {
            *y.add(at) += inner * *b.add(at);
        }
    }
}
