//! Adapters over one base on a device: read, stacked as the graph takes them (`policy::graph`) and kept in device memory as
//! long as the base.
//!
use super::config::{Activation, check_range};
use super::sessions::Sessions;
use device::{Buffer, Device};
use policy::adapter::Adapter;
use policy::config::Config;
use policy::directory::Policy;
use policy::graph::{Factor, Stack};
use policy::weights::Weights;
use record::failure::{Failure, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// One adapter and where it came from.
struct Member {
    description: Adapter,
    weights: Arc<Weights>,
    files: PathBuf,
}

/// Adapters of one base, in the order of their indices; none where only the base runs.
#[derive(Default)]
pub struct Adapters {
    members: Vec<Member>,
    stack: Stack,
}

impl Adapters {
    /// Reads the adapters among policies of one model.
    ///
    /// # Errors
    /// An adapter that is not implemented, or that does not fit the base.
    pub fn load(policies: &[Policy], config: &Config) -> Result<Adapters> {
        let mut members = Vec::new();
        for policy in policies {
            if let Some((description, weights)) = policy.adapter()? {
                if config.variant.fused_projections {
                    return Err(Failure::usage(format!(
                        "{}: adapters of fused projections cannot run on a device",
                        policy.files.display()
                    ))
                    .hint("use --device cpu"));
                }
                members.push(Member {
                    description: description.clone(),
                    weights,
                    files: policy.files.clone(),
                });
            }
        }
        let stack = Stack::new(members.iter().map(|member| &member.description));
        Ok(Adapters { members, stack })
    }

    /// Adapters without weights, for asking how much memory they take.
    #[cfg(test)]
    pub fn planned(stack: Stack) -> Adapters {
        Adapters { members: Vec::new(), stack }
    }

    /// How they are stacked.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Bytes of the device's arena, where every buffer may have a margin.
    pub fn bytes<T>(&self, config: &Config) -> u64 {
        let values = |factor: &Factor| (factor.shape.iter().product::<usize>() * size_of::<T>()) as u64;
        self.stack.factors(config).iter().map(|factor| values(factor) + 1024).sum()
    }

    /// Memory for all factors, bound to the sessions. They stay bound as long as the buffers are held.
    ///
    /// # Errors
    /// 69 where the arena is too small; 1 where ONNX Runtime refuses.
    pub fn buffers<D: Device, T: Activation>(
        &self,
        config: &Config,
        device: &mut D,
        sessions: &mut Sessions,
    ) -> Result<Vec<Buffer<T>>> {
        let mut buffers = Vec::new();
        for factor in self.stack.factors(config) {
            let buffer = device.allocate::<T>(factor.shape.iter().product())?;
            sessions.input::<T>(&factor.name, buffer.address(), &factor.shape)?;
            buffers.push(buffer);
        }
        Ok(buffers)
    }

    /// Uploads all factors into their buffers.
    ///
    /// # Errors
    /// A factor that is not finite, which would reach the rows of other adapters; a device that fails.
    pub fn fill<D: Device, T: Activation>(
        &self,
        config: &Config,
        device: &mut D,
        buffers: &[Buffer<T>],
    ) -> Result<()> {
        for (factor, buffer) in self.stack.factors(config).iter().zip(buffers) {
            let values = self.values(config, factor)?;
            check_range::<T>(&factor.name, &values)?;
            let values: Vec<T> = values.into_iter().map(T::round).collect();
            device.upload(&values, buffer.all())?;
        }
        Ok(())
    }

    /// The values of an input, row by row.
    fn values(&self, config: &Config, factor: &Factor) -> Result<Vec<f32>> {
        let [rows, width] = factor.shape;
        let mut values = vec![0.0; rows * width];
        let columns = self.stack.width();
        for (slot, &target) in factor.targets.iter().enumerate() {
            for (index, member) in self.members.iter().enumerate() {
                let Member { description, weights, files } = member;
                if !description.targets.contains(&target) {
                    continue;
                }
                let [a, b] = Adapter::names(factor.layer, target);
                let name = if factor.is_a { a } else { b };
                let read = weights.to_f32(&name)?;
                if read.iter().any(|value| !value.is_finite()) {
                    return Err(Failure::data(format!("{}: tensor {name:?} is not finite", files.display()))
                        .hint("training has diverged: go back to an earlier version"));
                }
                let own = self.stack.columns(index);
                let first = slot * columns + own.start;
                if factor.is_a {
                    values[first * width..][..read.len()].copy_from_slice(&read);
                    continue;
                }
                // The rows of this projection among the site's rows.
                let before = factor.site.targets().iter().take_while(|&&other| other != target);
                let before: usize = before.map(|other| other.extent(config).1).sum();
                let scale = description.scale();
                for (row, read) in read.chunks_exact(description.rank).enumerate() {
                    let part = &mut values[(before + row) * width + first..][..read.len()];
                    part.iter_mut().zip(read).for_each(|(value, read)| *value = scale * read);
                }
            }
        }
        Ok(values)
    }
}
