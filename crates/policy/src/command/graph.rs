//! `policy graph`: the decoder as a file that other tools can open.

use policy::directory::Policy;
use policy::graph::{self, Arithmetic, Kind};
use record::failure::Result;
use record::file;

use crate::arguments::{Attention, Graph};

pub fn run(arguments: &Graph) -> Result<()> {
    let policy = Policy::open(&arguments.directory)?;
    let weights = policy.weights()?;
    let kind = match arguments.kind {
        Attention::GroupQuery => Kind::GroupQuery,
        Attention::SharedPrefix => Kind::SharedPrefix { adapted: false },
        Attention::Paged => Kind::Paged(Arithmetic::BF16),
    };
    let model = graph::decoder(&policy.config, &weights, kind)?;
    let path = match &arguments.output {
        Some(path) => path.clone(),
        None => weights.folder()?.join("model.onnx"),
    };
    file::put(&path, &model)?;
    super::print(&[path.display().to_string()])
}
