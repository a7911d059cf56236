//! `--set nearest` and its like: bounds of a task's size.

use environment::settings::{Settings, ranged};
use record::failure::{Failure, Result};

/// Bounds of a task's size (a distance, a number of empty cells): the settings called `keys`, or the defaults. The
/// greatest must fit an episode of `turns` turns of up to `steps` `units` each.
///
/// # Errors
/// Values out of range, or that contradict each other: usage.
pub fn bounds(
    settings: &Settings,
    keys: [&str; 2],
    defaults: [u32; 2],
    limit: u32,
    (steps, units): (u32, &str),
    turns: u32,
) -> Result<(u32, u32)> {
    let [least_key, most_key] = keys;
    let reach = steps * turns;
    let most = match settings.value(most_key, "a whole number")? {
        Some(most) if most > reach => {
            return Err(Failure::usage(format!(
                "--set {most_key}={most}: an episode has {steps} x {turns} = {reach} {units}, so it could not be solved"
            ))
            .hint(format!("give it more {units} or turns")));
        }
        Some(most) => ranged(most_key, most, 1, limit.min(reach))?,
        None => reach.min(defaults[1]),
    };
    Ok((settings.whole(least_key, most.min(defaults[0]), 1, most)?, most))
}
