//! `advantage`: how much better than its group each sample did.
//!
//! Reads groups, scattered or not, and adds `advantage`, `group_mean` and `group_std`. Left out on purpose: which
//! samples are compared (that is `group`'s), and what the loss makes of the number (that is `update`'s).

mod arguments;
mod count;
mod credit;
mod estimator;
mod pending;
mod segment;
mod statistics;
mod whole;

use std::process::ExitCode;
use std::time::Instant;

use record::read::Reader;
use record::stage;
use record::write::Writer;

use crate::arguments::Arguments;
use crate::segment::Segment;

fn main() -> ExitCode {
    stage::run("advantage", || {
        let started = Instant::now();
        let arguments: Arguments = stage::parse();
        let method = arguments.method()?;
        let mut writer = Writer::stdout();
        let mut segment = Segment::new(&arguments, method);
        let outcome = segment.read(&mut Reader::stdin(), &mut writer);
        segment.close(&mut writer, outcome, stage::timing(started))
    })
}
