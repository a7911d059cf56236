//! `policy export`: a policy for others.

use policy::directory::Policy;
use policy::export::{Settings, export};
use policy::gguf;
use policy::hub::HubModel;
use record::failure::{Failure, Result};

use crate::arguments::Export;

pub fn run(arguments: &Export, quiet: bool) -> Result<()> {
    let policy = Policy::open(&arguments.directory)?;
    let Export { merge, base, run, output, gguf, dtype, push, .. } = arguments;
    let hub = push.as_ref().map(|name| HubModel::parse(format!("hf:{name}").as_ref())).transpose()?.flatten();
    if let Some(name) = push.as_ref().filter(|name| !name.contains('/')) {
        return Err(Failure::usage(format!("--push {name}: no name of an owner"))
            .hint("--push ORG/NAME, or your own name: --push ME/NAME"));
    }
    let mut made = Vec::new();
    if let Some(output) = output {
        export(&policy, output, Settings { merge: *merge, base: base.as_deref(), run: run.as_deref() })?;
        made.push(format!("{} {}", output.display(), policy.version));
    }
    if let Some(file) = gguf {
        gguf::export(&policy, file, *dtype)?;
        made.push(format!("{} {}", file.display(), policy.version));
    }
    if let (Some(hub), Some(output)) = (hub, output) {
        made.push(hub.push(output, quiet)?);
    }
    super::print(&made)
}
