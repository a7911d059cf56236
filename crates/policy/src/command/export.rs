//! `policy export`: a policy for others.

use policy::directory::Policy;
use policy::export::{Settings, export};
use record::failure::Result;

use crate::arguments::Export;

pub fn run(arguments: &Export) -> Result<()> {
    let policy = Policy::open(&arguments.directory)?;
    let Export { merge, base, run, output, .. } = arguments;
    export(&policy, output, Settings { merge: *merge, base: base.as_deref(), run: run.as_deref() })?;
    super::print(&[format!("{} {}", output.display(), policy.version)])
}
