//! The flags of all ranks, compared before anything else: ranks that take different steps would wait for each other forever.

use std::collections::BTreeMap;

use clap::{ArgMatches, Command};
use record::failure::{Failure, Result};

use super::{Communicator, gather};

/// Flags that may differ from rank to rank, because they do not change the result.
const OWN: [&str; 3] = ["threads", "quiet", "isa"];

/// Fails where a rank was started with other flags than rank 0.
///
/// # Errors
/// 2, naming the flag and the rank; the same on all ranks.
pub fn compare(ranks: &dyn Communicator, flags: &BTreeMap<String, String>) -> Result<()> {
    let told = serde_json::to_vec(flags).map_err(Failure::work)?;
    let all: Vec<BTreeMap<String, String>> = gather(ranks, &told)
        .iter()
        .map(|told| serde_json::from_slice(told))
        .collect::<std::result::Result<_, _>>()
        .map_err(Failure::work)?;
    let first = &all[0];
    for (rank, other) in all.iter().enumerate().skip(1) {
        if let Some(flag) = first.keys().chain(other.keys()).find(|flag| first.get(*flag) != other.get(*flag))
        {
            let with = |flags: &BTreeMap<String, String>| match flags.get(flag) {
                Some(value) => format!("with --{flag} {value}"),
                None => format!("without --{flag}"),
            };
            let [rank, zero] = [rank, 0].map(|rank| ranks.number(rank));
            return Err(Failure::usage(format!(
                "rank {rank} was started {}, rank {zero} {}",
                with(other),
                with(first)
            ))
            .hint("start all ranks with the same flags; only --threads, --quiet and --isa may differ"));
        }
    }
    Ok(())
}

/// The flags of a command line by their long names, defaults included. The number of a device may differ by
/// rank.
pub fn of(command: &Command, matches: &ArgMatches) -> BTreeMap<String, String> {
    let own = |flag: &str| OWN.contains(&flag);
    let flags =
        command.get_arguments().filter_map(|argument| Some((argument.get_id(), argument.get_long()?)));
    flags
        .filter(|(_, flag)| !own(flag))
        .filter_map(|(id, flag)| {
            let values = matches.try_get_raw(id.as_str()).ok()??;
            let value = values.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(" ");
            let value =
                if flag == "device" { value.split(':').next().unwrap_or_default().to_owned() } else { value };
            Some((flag.to_owned(), value))
        })
        .collect()
}
