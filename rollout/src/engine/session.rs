//! An ONNX Runtime session that many threads run at once, each with a [`Pass`] of its own.
//!
//! `OrtSession::Run` is thread-safe; the wrapper crate's methods ask for `&mut`, so this calls the C function. Inputs
//! and outputs are tensors over our own memory: nothing is copied and nothing is kept between runs.

use super::attention::Pass;
use super::custom::Domain;
use super::isa::Kernels;
use super::linear::Linears;
use super::operator::{Operator, domain, lend};
use super::values::{Memory, Tensor, check, failed};
use crate::runtime;
use ort::AsPointer;
use ort::session::builder::GraphOptimizationLevel;
use record::failure::{Failure, Result};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// A graph ready to run.
pub struct Session {
    session: ort::session::Session,
    memory: Memory,
    vocab_size: usize,
    /// Must outlive the session, so it stands behind it.
    _domain: Domain<Operator>,
}

impl Session {
    /// Opens a session over `graph`, a serialised model whose external data lies in `folder`, whose products of
    /// our own are `linears` and whose logits are `[rows, vocab_size]`.
    pub fn open(
        graph: &[u8],
        folder: &Path,
        vocab_size: usize,
        kernels: Kernels,
        linears: Option<Arc<Linears>>,
    ) -> Result<Self> {
        let environment = runtime::environment()?;
        let folder = folder.to_str().ok_or_else(|| Failure::data("the directory's name is not UTF-8"))?;
        let domain = domain(kernels, linears)?;
        // One thread a run: parallel work is over groups, where it needs no barriers. Shapes change with every run, so
        // patterns of memory would be recorded and never used again.
        let mut builder = ort::session::Session::builder(environment)
            .map_err(failed)?
            .with_intra_threads(1)
            .map_err(failed)?
            .with_inter_threads(1)
            .map_err(failed)?
            .with_intra_op_spinning(false)
            .map_err(failed)?
            .with_memory_pattern(false)
            .map_err(failed)?
            .with_optimization_level(GraphOptimizationLevel::All)
            .map_err(failed)?
            .with_log_level(ort::logging::LogLevel::Error)
            .map_err(failed)?
            .with_config_entry("session.model_external_initializers_file_folder_path", folder)
            .map_err(failed)?;
        domain.register(builder.ptr_mut())?;
        let session = runtime::open_session(builder, graph).map_err(failed)?;
        Ok(Session { session, memory: Memory::plain()?, vocab_size, _domain: domain })
    }

    /// Runs the graph over the rows of `pass.plan`, whose tokens are `ids`. `logits` becomes
    /// `[pass.plan.wanted.len(), vocab_size]`; there may be no row at all.
    pub fn run(&self, pass: &mut Pass, ids: &[i64], logits: &mut Vec<f32>) -> Result<()> {
        let wanted = std::mem::take(&mut pass.plan.wanted);
        logits.resize(wanted.len() * self.vocab_size, 0.0);
        let memory = &self.memory;
        let tokens = Tensor::over(memory, ids.as_ptr().cast_mut(), &[ids.len()])?;
        let rows = Tensor::over(memory, wanted.as_ptr().cast_mut(), &[wanted.len()])?;
        let result = Tensor::over(memory, logits.as_mut_ptr(), &[wanted.len(), self.vocab_size])?;
        let input_names = [c"input_ids".as_ptr(), c"last_idx".as_ptr()];
        let output_names = [c"logits".as_ptr()];
        let inputs = [tokens.pointer().cast_const(), rows.pointer().cast_const()];
        let mut outputs = [result.pointer()];
        let lent = lend(pass);
        // SAFETY: all names and tensors outlive the call; the inputs are only read, and the output is `logits`, which
        // this call alone holds. The session may be run by several threads at once.
        let status = unsafe {
            (ort::api().Run)(
                self.session.ptr().cast_mut(),
                ptr::null(),
                input_names.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                output_names.as_ptr(),
                outputs.len(),
                outputs.as_mut_ptr(),
            )
        };
        drop(lent);
        pass.plan.wanted = wanted;
        check(status)
    }
}
