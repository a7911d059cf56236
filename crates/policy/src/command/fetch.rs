//! `policy fetch`: a model's directory on this machine.

use policy::decoder::Tensor;
use policy::directory::Policy;
use policy::lora::VariedAdapter;
use policy::models;
use policy::tokenizer::Tokenizer;
use record::failure::Result;
use record::sample::Message;
use serde_json::json;

use super::sources;
use crate::arguments::{Fetch, FetchFormat};

pub fn run(arguments: &Fetch, quiet: bool) -> Result<()> {
    let directory = models::directory(&arguments.model, arguments.dtype.into(), quiet)?;
    sources::check(&directory)?;
    let policy = match VariedAdapter::open(&directory)? {
        Some(varied) => Policy::open(&varied.base()?)?,
        None => Policy::open(&directory)?,
    };
    let hello = Message { role: "user".to_owned(), content: "hello".to_owned() };
    Tokenizer::load(policy.model())?.chat(&[hello])?; // a run of a model that cannot be prompted ends here
    let parameters: usize = policy.config.tensors().iter().map(Tensor::count).sum();
    super::print(&[match arguments.format {
        FetchFormat::Text => directory.display().to_string(),
        FetchFormat::Json => json!({ "directory": directory, "parameters": parameters }).to_string(),
    }])
}
