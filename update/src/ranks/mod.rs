//! The processes that share one update, and the data they exchange.
//!
//! All read the same stream, which rank 0 hands on; each differentiates its share of the parts of an optimizer batch
//! ([`crate::parts`]), and all take the same step. Rank 0 alone writes lines and publishes. Transport is MPI's, in a build
//! with the feature `mpi`, and between GPUs NCCL's ([`Transport`]). Sums are computed here, because an MPI library's results depend on its algorithm. Each rank sums and
//! steps a share of the weights and keeps the share's moments, then all receive the rest. With `--side-by-side` each policy has
//! a separate set of ranks ([`PolicyRanks`]). Left out: weights in slices.

pub mod cards;
pub mod flags;
mod input;
#[cfg(feature = "mpi")]
mod mpi;
mod nccl;
mod policy_ranks;
mod sum;
mod transport;
#[cfg_attr(not(any(feature = "mpi", test)), expect(dead_code, reason = "MPI names who is absent"))]
mod wait;

use std::ops::Range;

use record::failure::{Failure, Result};
use record::stage;

use crate::optimizer::shares::Shares;
pub use input::Input;
pub use nccl::connect;
pub use policy_ranks::PolicyRanks;
pub use sum::{DeviceSum, PartSum, device_checksums, values_received};
pub use transport::{ThroughHost, Transport};

/// Bytes that a rank hands out and receives at once in a sum.
const SUM_BYTES: usize = 16 << 20;

/// The processes of an update, as one of them sees them: an MPI communicator.
pub trait Communicator {
    /// Its number, from 0.
    fn rank(&self) -> usize;

    /// How many there are.
    fn count(&self) -> usize;

    /// Splits the ranks into equal groups of neighbors and returns this rank's group, renumbered from 0. The number of groups
    /// must divide `count`.
    fn split(&self, groups: usize) -> Box<dyn Communicator>;

    /// The number of one of these among all that the launcher has started.
    fn number(&self, rank: usize) -> usize {
        rank
    }

    /// Broadcasts the bytes of rank `root`. A waiting rank yields its core, because the wait may be long.
    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<()>;

    /// Gathers everyone's `own` on all ranks, in rank order. All have one size.
    fn all_gather(&self, own: &[u8], all: &mut [u8]);

    /// Sends the r-th of `count` equal pieces of `own` to rank r, and receives one piece from each, in rank order.
    fn all_to_all(&self, own: &[u8], received: &mut [u8]);

    /// Gathers everyone's `own` on rank 0, in rank order. `lengths` has the bytes of each; `all` is used on rank 0 only.
    fn gather_on_first(&self, own: &[u8], lengths: &[usize], all: &mut [u8]);

    /// The end of a process that has done its work.
    fn finish(&self) {}

    /// The end of all of them.
    fn abort(&self, _code: u8) {}
}

/// The communicator of an update in one process.
pub struct SingleProcess;

impl Communicator for SingleProcess {
    fn rank(&self) -> usize {
        0
    }

    fn count(&self) -> usize {
        1
    }

    fn split(&self, _: usize) -> Box<dyn Communicator> {
        Box::new(SingleProcess)
    }

    fn broadcast(&self, _: usize, _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn all_gather(&self, own: &[u8], all: &mut [u8]) {
        all.copy_from_slice(own);
    }

    fn all_to_all(&self, own: &[u8], received: &mut [u8]) {
        received.copy_from_slice(own);
    }

    fn gather_on_first(&self, own: &[u8], _: &[usize], all: &mut [u8]) {
        all.copy_from_slice(own);
    }
}

/// The processes that `mpirun` or `srun` started, or this one alone.
///
/// # Errors
/// A launcher that this build does not support started several processes, and each would train by itself (69).
pub fn start() -> Result<Box<dyn Communicator>> {
    let started = started();
    if started == 1 { Ok(Box::new(SingleProcess)) } else { several(started) }
}

/// How many processes a launcher has started.
fn started() -> usize {
    of_launcher(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]).unwrap_or(1)
}

#[cfg(feature = "mpi")]
fn several(started: usize) -> Result<Box<dyn Communicator>> {
    let ranks = mpi::Mpi::start();
    match ranks.count() {
        count if count == started => Ok(Box::new(ranks)),
        count => Err(Failure::unavailable(format!(
            "{started} processes were started, and MPI sees {count} of them: each would train by itself"
        ))
        .hint(
            "they are started by another MPI than this program is linked with; with Slurm: srun --mpi=pmix",
        )),
    }
}

#[cfg(not(feature = "mpi"))]
fn several(started: usize) -> Result<Box<dyn Communicator>> {
    Err(Failure::unavailable(format!(
        "{started} processes were started, and this build knows nothing of the others: each would train by itself"
    ))
    .hint("cargo build --release --workspace --features update/mpi --bin update-mpi builds the program for several"))
}

/// Ends this rank, and where `outcome` is a failure all of them, with its exit code.
pub fn end(ranks: &dyn Communicator, outcome: Result<()>) -> Result<()> {
    if let Err(failure) = &outcome
        && ranks.count() > 1
        && !failure.is_closed()
    {
        say(ranks.rank(), failure);
        ranks.abort(failure.code);
    }
    ranks.finish();
    outcome
}

/// Reports the failure of a process that has not joined the others yet; one of them prints it, and the launcher ends them.
pub fn refused(failure: Failure) -> Failure {
    if started() > 1 {
        say(of_launcher(["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"]).unwrap_or(0), &failure);
        std::process::exit(i32::from(failure.code));
    }
    failure
}

/// If all fail alike, rank 0 prints the cause; the others print it if they still run afterwards.
fn say(rank: usize, failure: &Failure) {
    if rank == 0 {
        stage::report("update", failure);
    } else if !ended_by_rank_0(10) {
        let is_named = failure.message.starts_with(&format!("rank {rank} "));
        let named = if is_named { failure.clone() } else { failure.clone().at(format_args!("rank {rank}")) };
        stage::report("update", &named);
    }
    stage::drain_stderr();
}

/// Returns true if rank 0's failure ends this process within `seconds`.
fn ended_by_rank_0(seconds: u32) -> bool {
    (0..10 * seconds).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        stage::interrupted()
    })
}

/// A number that Open MPI, MPICH and its relatives, or Slurm passes to the processes that it starts.
fn of_launcher(names: [&str; 3]) -> Option<usize> {
    names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// Evaluates `find` on rank 0 and broadcasts the result.
pub fn find_on_rank0(ranks: &dyn Communicator, find: impl FnOnce() -> Result<String>) -> Result<String> {
    find_on(ranks, 0, find)
}

/// Evaluates `find` on rank `root` and broadcasts the result.
fn find_on(ranks: &dyn Communicator, root: usize, find: impl FnOnce() -> Result<String>) -> Result<String> {
    let found = if ranks.rank() == root { find()? } else { String::new() };
    if ranks.count() == 1 {
        return Ok(found);
    }
    let mut length = found.len().to_le_bytes();
    ranks.broadcast(root, &mut length)?;
    let mut bytes = found.into_bytes();
    bytes.resize(usize::from_le_bytes(length), 0);
    ranks.broadcast(root, &mut bytes)?;
    String::from_utf8(bytes).map_err(|_| Failure::work(format!("rank {root} sent bytes that are not UTF-8")))
}

/// This rank's parts: every `count`-th, so that the parts of each round are one branch of the tree of sums.
pub fn own_parts<'a, T>(
    ranks: &dyn Communicator,
    parts: &'a [T],
) -> impl Iterator<Item = &'a T> + use<'a, T> {
    parts.iter().skip(ranks.rank()).step_by(ranks.count())
}

/// Everyone's bytes, of any size, in the order of ranks.
pub fn gather(ranks: &dyn Communicator, own: &[u8]) -> Vec<Vec<u8>> {
    let mut lengths = vec![0; ranks.count() * size_of::<u64>()];
    ranks.all_gather(&(own.len() as u64).to_le_bytes(), &mut lengths);
    let lengths: Vec<usize> =
        lengths.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes) as usize).collect();
    let largest = lengths.iter().copied().max().unwrap_or(0).max(1);
    let mut padded = own.to_vec();
    padded.resize(largest, 0);
    let mut all = vec![0; largest * ranks.count()];
    ranks.all_gather(&padded, &mut all);
    all.chunks(largest).zip(lengths).map(|(bytes, length)| bytes[..length].to_vec()).collect()
}

/// Gathers every rank's share of the values of `state` on all ranks, a piece at a time. `read` copies a range of values,
/// `write` replaces one.
pub fn exchange<S, T: bytemuck::Pod>(
    ranks: &dyn Communicator,
    shares: &Shares,
    state: &mut S,
    read: impl Fn(&mut S, Range<usize>, &mut [T]) -> Result<()>,
    write: impl Fn(&mut S, Range<usize>, &[T]) -> Result<()>,
) -> Result<()> {
    let (mut own, mut all) = (Vec::new(), Vec::new());
    for ranges in (0..shares.regions()).map(|region| shares.of_region(region)) {
        let longest = ranges.iter().map(Range::len).max().unwrap_or(0);
        let most = (SUM_BYTES / size_of::<T>() / ranges.len()).min(longest).max(1);
        own.resize(most, T::zeroed());
        all.resize(most * ranges.len(), T::zeroed());
        for from in (0..longest).step_by(most) {
            let piece = |range: &Range<usize>| {
                let start = (range.start + from).min(range.end);
                start..(start + most).min(range.end)
            };
            let mine = piece(&ranges[ranks.rank()]);
            if !mine.is_empty() {
                read(state, mine.clone(), &mut own[..mine.len()])?;
            }
            ranks.all_gather(bytemuck::cast_slice(&own), bytemuck::cast_slice_mut(&mut all));
            for (rank, range) in ranges.iter().enumerate().filter(|(rank, _)| *rank != ranks.rank()) {
                let piece = piece(range);
                if !piece.is_empty() {
                    write(state, piece.clone(), &all[rank * most..][..piece.len()])?;
                }
            }
        }
    }
    Ok(())
}

/// Merges values of which each rank has computed some and left the others at 0.
pub fn gather_disjoint(ranks: &dyn Communicator, values: &mut [f32]) {
    for other in gather(ranks, bytemuck::cast_slice(values)) {
        for (value, bytes) in values.iter_mut().zip(other.as_chunks().0) {
            // All bits of 0 are 0.
            *value = f32::from_bits(value.to_bits() | u32::from_le_bytes(*bytes));
        }
    }
}

/// A checksum of values' bits, to find ranks whose values differ. Any flipped bit changes it, and it is fast enough for
/// every step. `add_checksums` of `parts.cu` is the same on a device.
#[derive(Debug, Default)]
pub struct Checksum {
    /// The sum so far.
    pub sum: u64,
    count: u64,
}

impl Checksum {
    /// Adds values.
    pub fn add(&mut self, values: &[f32]) {
        for value in values {
            // Odd factors lose no bit and detect swapped values.
            let factor = 2 * self.count + 1;
            self.sum = self.sum.wrapping_add(u64::from(value.to_bits()).wrapping_mul(factor));
            self.count += 1;
        }
    }
}

/// Fails if a rank has received other values than were sent to it. `checksums`: one of the values sent to each rank, then one
/// of the values received from each.
///
/// # Errors
/// 1, naming both ranks and their machines.
pub fn compare_received(ranks: &dyn Communicator, checksums: &[u64]) -> Result<()> {
    let (count, host) = (ranks.count(), host());
    let found = gather(ranks, &[bytemuck::cast_slice(checksums), host.as_bytes()].concat());
    let word = |rank: usize, at: usize| &found[rank][at * size_of::<u64>()..][..size_of::<u64>()];
    let mut pairs = (0..count * count).map(|pair| (pair / count, pair % count));
    let Some((from, to)) = pairs.find(|&(from, to)| word(from, to) != word(to, count + from)) else {
        return Ok(());
    };
    let name = |rank: usize| {
        let host = String::from_utf8_lossy(&found[rank][size_of_val(checksums)..]);
        format!("rank {} on {host}", ranks.number(rank))
    };
    let (to, from) = (name(to), name(from));
    Err(Failure::work(format!("{to} received another gradient than {from} sent; nothing was published"))
        .hint(FAULTY))
}

const FAULTY: &str =
    "a machine or a card is faulty, or they are of different kinds: leave it out, and repeat the step";

/// This machine's name.
fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_owned()
}

/// Fails if a rank's digest differs from the others'. All digests have one length; `has` names the data in the message.
///
/// # Errors
/// 1, naming the ranks and their machines.
pub fn compare(ranks: &dyn Communicator, digest: &[u8], has: &str) -> Result<()> {
    let found = gather(ranks, &[digest, host().as_bytes()].concat());
    let digests: Vec<&[u8]> = found.iter().map(|bytes| &bytes[..digest.len()]).collect();
    let name = |rank: &usize| {
        let host = String::from_utf8_lossy(&found[*rank][digest.len()..]);
        format!("rank {} on {host}", ranks.number(*rank))
    };
    let (right, wrong) = odd_ones(&digests);
    if wrong.is_empty() {
        return Ok(());
    }
    let wrong: Vec<String> = wrong.iter().map(name).collect();
    Err(Failure::work(format!("{} {has} than {}; nothing was published", wrong.join(" and "), name(&right)))
        .hint(FAULTY))
}

/// A rank with the most frequent digest, and the ranks that have another. On a tie rank 0's digest wins.
fn odd_ones(digests: &[&[u8]]) -> (usize, Vec<usize>) {
    let votes = |rank: &usize| digests.iter().filter(|digest| **digest == digests[*rank]).count();
    let right = (0..digests.len()).rev().max_by_key(votes).unwrap_or(0);
    (right, (0..digests.len()).filter(|&rank| digests[rank] != digests[right]).collect())
}

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod nccl_tests;
#[cfg(test)]
mod tests;
