//! An ONNX Runtime session over a decoder's graph. The parameters are inputs, or the state of custom operators, so one session
//! serves every version of them, and any number of threads.

use super::context::{ForwardContext, set_current};
use super::isa::Kernels;
use super::operators::domain;
use crate::engine::batch::Batch;
use crate::engine::custom_op::Domain;
use crate::engine::onnx::{Memory, Tensor, check, failed, session_builder};
use crate::runtime;
use ort::AsPointer;
use ort::session::Session;
use record::failure::Result;
use std::ptr;

/// A session and the weights that it was opened with.
pub struct Network {
    graph: Vec<u8>,
    session: Session,
    memory: Memory,
    /// Must outlive the session, so it stands behind it.
    _domain: Domain<Kernels>,
}

impl Network {
    /// Opens a session over a shared-prefix graph (`policy::graph`).
    ///
    /// # Errors
    /// Exit 69 without ONNX Runtime, 1 where it refuses the graph.
    pub fn open(graph: Vec<u8>, kernels: Kernels) -> Result<Network> {
        // Loads the library, which the operators need.
        let mut builder = session_builder()?;
        let domain = domain(kernels)?;
        domain.register(builder.ptr_mut())?;
        let session = runtime::open_session(builder, &graph).map_err(failed)?;
        Ok(Network { graph, session, memory: Memory::host()?, _domain: domain })
    }

    /// Returns true if a session over `graph` would be the same.
    pub fn is_over(&self, graph: &[u8]) -> bool {
        self.graph == graph
    }

    /// Runs the graph over a batch with the parameters of `context`; `logits` has `vocabulary` numbers for
    /// each of `batch.logit_rows`. Inputs and outputs are tensors over memory that we allocate, so nothing is
    /// copied.
    ///
    /// `OrtSession::Run` is thread-safe; the wrapper crate's method asks for `&mut`, so this calls the C
    /// function.
    pub fn run(
        &self,
        context: &mut ForwardContext,
        batch: &Batch,
        vocabulary: usize,
        logits: &mut [f32],
    ) -> Result<()> {
        let (rows, memory) = (&batch.logit_rows, &self.memory);
        let ids = Tensor::over(memory, batch.ids.as_ptr().cast_mut(), &[batch.ids.len()])?;
        let indices = Tensor::over(memory, rows.as_ptr().cast_mut(), &[rows.len()])?;
        let result = Tensor::over(memory, logits.as_mut_ptr(), &[rows.len(), vocabulary])?;
        let parameters = context.parameters.clone();
        let mut input_names = vec![c"input_ids".as_ptr(), c"last_idx".as_ptr()];
        let mut inputs = vec![ids.pointer().cast_const(), indices.pointer().cast_const()];
        for fed in &parameters.base.fed {
            input_names.push(fed.name.as_ptr());
            inputs.push(fed.value.pointer());
        }
        let output_names = [c"logits".as_ptr()];
        let mut outputs = [result.pointer()];
        let _guard = set_current(context, batch);
        // SAFETY: all names and tensors outlive the call; the inputs are only read, and the output is `logits`, which
        // this call alone holds. The session may be run by several threads at once.
        check(unsafe {
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
        })
    }
}
