//! `group`: which samples are compared with which.
//!
//! Grouped by agent and turn, every group proves that its members share one prompt and that all of them are there
//! (AT-GRPO, arXiv 2510.11062, section 3). A group is written as soon as it and all before it are whole; scattered
//! members only cost memory. Left out on purpose: any thought of what a reward means, which is `advantage`'s.

mod arguments;
mod count;
mod key;
mod pending;
mod segment;

use std::process::ExitCode;
use std::time::Instant;

use record::read::Reader;
use record::stage;
use record::write::Writer;

use crate::arguments::Arguments;
use crate::segment::Segment;

fn main() -> ExitCode {
    stage::run("group", || {
        let started = Instant::now();
        let arguments: Arguments = stage::parse();
        arguments.check()?;
        let mut writer = Writer::stdout();
        let mut segment = Segment::new(&arguments);
        let outcome = segment.read(&mut Reader::stdin(), &mut writer);
        segment.close(&mut writer, outcome, stage::timing(started))
    })
}
