//! Ranks as threads: what an exchange leaves on each of them.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use clap::CommandFactory;

use super::*;
use crate::model::{Gradients, Layout};
use crate::optimizer::shares::norm_of_slices;

/// Where threads put what the others take.
struct Table {
    barrier: Barrier,
    places: Vec<Mutex<Vec<u8>>>,
}

struct Thread<'a> {
    rank: usize,
    table: &'a Table,
}

impl Thread<'_> {
    /// What everyone handed in.
    fn exchange(&self, own: &[u8]) -> Vec<Vec<u8>> {
        *self.table.places[self.rank].lock().unwrap() = own.to_vec();
        self.table.barrier.wait();
        let all = self.table.places.iter().map(|place| place.lock().unwrap().clone()).collect();
        self.table.barrier.wait();
        all
    }
}

impl Communicator for Thread<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.table.places.len()
    }

    fn split(&self, _: usize) -> Box<dyn Communicator> {
        Box::new(SingleProcess)
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<()> {
        let all = self.exchange(bytes);
        bytes.copy_from_slice(&all[root]);
        Ok(())
    }

    fn all_gather(&self, own: &[u8], all: &mut [u8]) {
        all.copy_from_slice(&self.exchange(own).concat());
    }

    fn all_to_all(&self, own: &[u8], received: &mut [u8]) {
        let piece = own.len() / self.count();
        let all = self.exchange(own);
        let mine = all.iter().flat_map(|other| &other[self.rank * piece..][..piece]);
        received.iter_mut().zip(mine).for_each(|(place, byte)| *place = *byte);
    }

    fn gather_on_first(&self, own: &[u8], lengths: &[usize], all: &mut [u8]) {
        let found = self.exchange(own);
        assert!(found.iter().map(Vec::len).eq(lengths.iter().copied()));
        if self.rank == 0 {
            all.copy_from_slice(&found.concat());
        }
    }
}

#[test]
fn side_by_side_each_policy_has_ranks_of_its_own_and_all_are_told() {
    let found = each(3, |ranks| {
        let processes = PolicyRanks::new(ranks, 3, true);
        processes.wait();
        let trains: Vec<usize> = (0..3).filter(|policy| processes.trains(*policy)).collect();
        let told = |policy| processes.find_on_first(policy, || Ok(format!("{trains:?}"))).unwrap();
        (trains.clone(), [0, 1, 2].map(told).concat())
    });
    let told = "[0][1][2]".to_owned();
    assert_eq!(found, [(vec![0], told.clone()), (vec![1], told.clone()), (vec![2], told)]);
    let all = each(2, |ranks| {
        let processes = PolicyRanks::new(ranks, 3, false);
        (0..3).all(|policy| processes.trains(policy)) && processes.own().count() == 2
    });
    assert_eq!(all, [true; 2]);
}

/// What each of `count` ranks comes to.
pub(super) fn each<T: Send>(count: usize, work: impl Fn(&dyn Communicator) -> T + Sync) -> Vec<T> {
    let table =
        Table { barrier: Barrier::new(count), places: (0..count).map(|_| Mutex::default()).collect() };
    std::thread::scope(|scope| {
        let (table, work) = (&table, &work);
        let started: Vec<_> =
            (0..count).map(|rank| scope.spawn(move || work(&Thread { rank, table }))).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Numbers whose sum depends on the order of additions.
pub(super) fn numbers(of: usize, length: usize) -> Vec<f32> {
    let value = |index: usize| {
        let bits = (index * 2_654_435_761 + of * 40_503) % 1_000_003;
        (bits as f32 - 500_000.0) * 10f32.powi((bits % 13) as i32 - 6)
    };
    (0..length).map(value).collect()
}

/// Regions of a layout of `length` values, cut for `count` ranks in different places.
pub(super) fn shares(length: usize, regions: usize, count: usize) -> Shares {
    let cut = |of: usize, at: usize| length * at / of;
    let of_region = |region: usize| {
        let (start, end) = (cut(regions, region), cut(regions, region + 1));
        let at = |rank: usize| start + (end - start) * rank * rank / (count * count);
        (0..count).map(|rank| at(rank)..at(rank + 1)).collect()
    };
    Shares::of((0..regions).map(of_region).collect())
}

/// The tree of sums of neighbors.
fn tree(parts: &[Vec<f32>]) -> Vec<f32> {
    match parts {
        [one] => one.clone(),
        _ => {
            let (left, right) = parts.split_at(parts.len() / 2);
            tree(left).iter().zip(tree(right)).map(|(left, right)| left + right).collect()
        }
    }
}

/// Parts dealt in turn to any number of ranks have the sum of one rank to the bit, and no more shares wait than are planned.
#[test]
fn the_sum_of_parts_is_one_tree_for_any_number_of_ranks() {
    for (parts, length, regions) in
        [(1, 50, 1), (2, 50, 3), (4, 0, 1), (4, 1000, 5), (8, 7, 2), (16, 333, 4), (32, 64, 3), (64, 10, 1)]
    {
        let gradients: Vec<Vec<f32>> = (0..parts).map(|part| numbers(part, length)).collect();
        let expected = tree(&gradients);
        let in_line = |at: usize| gradients.iter().map(|gradient| gradient[at]).sum::<f32>();
        assert!(length < 333 || (0..length).any(|at| in_line(at) != expected[at]), "the order matters");
        for count in [1, 2, 4, 8].into_iter().filter(|count| *count <= parts) {
            let shares = shares(length, regions, count);
            let found = each(count, |ranks| {
                let mut sum = PartSum::new(ranks, shares.clone(), parts);
                let own = shares.of_rank(ranks.rank());
                let mut summed = vec![f32::NAN; own.len()];
                for gradient in own_parts(ranks, &gradients) {
                    for _ in 0..regions {
                        let read = |_: &mut Vec<f32>, range: Range<usize>, values: &mut [f32]| {
                            values.copy_from_slice(&gradient[range]);
                            Ok(())
                        };
                        let write = |summed: &mut Vec<f32>, range: Range<usize>, place, values: &[f32]| {
                            assert_eq!(own.within(&range), [(range.clone(), place)]);
                            summed[place..][..values.len()].copy_from_slice(values);
                            Ok(())
                        };
                        sum.add(&mut summed, read, write).unwrap();
                    }
                    assert!(sum.shares_waiting() <= PartSum::waiting(parts / count));
                }
                compare_received(ranks, &sum.checksums()).unwrap();
                summed
            });
            for (rank, found) in found.iter().enumerate() {
                let ranges = shares.of_rank(rank);
                let mine = ranges.ranges().iter().flat_map(|range| &expected[range.clone()]);
                assert!(found.iter().eq(mine), "{parts} parts, {count} ranks, rank {rank}");
            }
        }
    }
}

/// The norm of slices has the bits of the norm of all, wherever they are cut.
#[test]
fn the_norm_of_slices_is_the_norm_of_all_to_the_bit() {
    for length in [1, 1000, 3 << 16, 200_001] {
        let mut gradients = Gradients::zeros(&Arc::new(Layout::flat(length)));
        gradients.values = numbers(3, length);
        let expected = crate::optimizer::norm(&gradients);
        for count in [2, 4, 8] {
            for shares in [shares(length, 1, count), Shares::consecutive(even(length, count))] {
                let found = each(count, |ranks| {
                    let own = &shares.of_region(0)[ranks.rank()];
                    let mut values = vec![f32::NAN; length];
                    values[own.clone()].copy_from_slice(&gradients.values[own.clone()]);
                    norm_of_slices(ranks, own, &values)
                });
                assert!(found.iter().all(|norm| norm.to_bits() == expected.to_bits()), "{length} {count}");
            }
        }
    }
}

fn even(length: usize, count: usize) -> Vec<Range<usize>> {
    (0..count).map(|rank| length * rank / count..length * (rank + 1) / count).collect()
}

#[test]
fn corrupted_messages_are_refused_by_both_names() {
    let outcomes = each(4, |ranks| {
        let mut checksums = vec![7; 8];
        if ranks.rank() == 3 {
            checksums[4 + 1] ^= 1;
        }
        compare_received(ranks, &checksums).map_err(|failure| failure.message)
    });
    for outcome in outcomes {
        let message = outcome.unwrap_err();
        let named = message.starts_with("rank 3 on ") && message.contains("another gradient than rank 1 on ");
        assert!(named, "{message}");
    }
}

#[test]
fn bytes_of_any_size_are_gathered_and_rank_0_is_heard() {
    for found in each(4, |ranks| gather(ranks, &vec![ranks.rank() as u8; ranks.rank() * 3])) {
        assert_eq!(found, [vec![], vec![1; 3], vec![2; 6], vec![3; 9]]);
    }
    let heard = each(2, |ranks| find_on_rank0(ranks, || Ok(format!("rank {}", ranks.rank()))).unwrap());
    assert_eq!(heard, ["rank 0", "rank 0"]);
    let parts = each(2, |ranks| own_parts(ranks, &[0, 1, 2, 3]).copied().collect::<Vec<_>>());
    assert_eq!(parts, [[0, 2], [1, 3]]);
}

#[test]
fn all_read_what_rank_0_reads() {
    let text = vec![7u8; 100_000];
    let read = each(2, |ranks| {
        let own = if ranks.rank() == 0 { &text[..] } else { &[] };
        // Now and then rank 0 says that there is nothing yet.
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        let is_ready = |_| Ok(!LOOKS.fetch_add(1, Ordering::Relaxed).is_multiple_of(3));
        let (mut input, mut found, mut buffer) =
            (Input { ranks, input: own, is_ready }, Vec::new(), [0; 4096]);
        loop {
            let length = input.read(&mut buffer).unwrap();
            found.extend_from_slice(&buffer[..length]);
            if length == 0 {
                return found;
            }
        }
    });
    assert!(read[0] == text && read[1] == text);
}

#[test]
fn slices_are_handed_to_all() {
    for slices in [[0..3, 3..6, 6..9, 9..10], [0..0, 0..9, 9..10, 10..10]] {
        let found = each(4, |ranks| {
            let mut own = [0.0; 10];
            slices[ranks.rank()].clone().for_each(|index| own[index] = index as f32);
            exchange(
                ranks,
                &Shares::consecutive(slices.to_vec()),
                &mut own,
                |own, range, values| {
                    values.copy_from_slice(&own[range]);
                    Ok(())
                },
                |own, range, values| {
                    own[range].copy_from_slice(values);
                    Ok(())
                },
            )
            .unwrap();
            own
        });
        assert_eq!(found, [std::array::from_fn(|index| index as f32); 4]);
    }
}

#[test]
fn values_computed_by_some_are_completed_to_the_bit() {
    let whole = [1.5, -0.25, f32::NAN, f32::NEG_INFINITY, 0.0];
    let found = each(2, |ranks| {
        let mut own = whole;
        (0..5).filter(|at| at % 2 != ranks.rank()).for_each(|at| own[at] = 0.0);
        gather_disjoint(ranks, &mut own);
        own.map(f32::to_bits)
    });
    assert_eq!(found, [whole.map(f32::to_bits); 2]);
}

#[test]
fn a_checksum_sees_every_bit_and_every_place() {
    let of = |values: &[f32]| {
        let mut checksum = Checksum::default();
        values.chunks(3).for_each(|piece| checksum.add(piece));
        checksum.sum
    };
    let values = numbers(1, 100);
    for bit in 0..100 * 32 {
        let mut flipped = values.clone();
        flipped[bit / 32] = f32::from_bits(values[bit / 32].to_bits() ^ (1 << (bit % 32)));
        assert_ne!(of(&flipped), of(&values), "{bit}");
    }
    let mut swapped = values.clone();
    swapped.swap(3, 70);
    assert_ne!(of(&swapped), of(&values));
}

#[test]
fn the_rank_that_differs_is_named() {
    let outcomes = each(4, |ranks| {
        let digest = blake3::hash(if ranks.rank() == 2 { b"other" } else { b"weights" });
        compare(ranks, digest.as_bytes(), "made other weights")
            .map_err(|failure| (failure.code, failure.message))
    });
    for outcome in outcomes {
        let (code, message) = outcome.unwrap_err();
        assert_eq!(code, 1);
        assert!(
            message.starts_with("rank 2 on ") && message.contains("made other weights than rank 0"),
            "{message}"
        );
    }
    assert_eq!(each(4, |ranks| compare(ranks, b"weights", "made others")), vec![Ok(()); 4]);
    assert_eq!(odd_ones(&[b"a", b"b"]), (0, vec![1]));
    assert_eq!(odd_ones(&[b"a", b"b", b"b", b"b"]), (1, vec![0]));
}

/// Ranks with other epochs would wait for each other.
#[test]
fn the_flag_that_differs_is_named() {
    let command = crate::arguments::Arguments::command();
    let of = |line: &str| {
        let line = format!("update --policy P --parts 4 {line}");
        flags::of(&command, &command.clone().try_get_matches_from(line.split_whitespace()).unwrap())
    };
    let outcome = |lines: [&str; 4]| {
        let found = each(4, |ranks| {
            flags::compare(ranks, &of(lines[ranks.rank()])).map_err(|failure| failure.message)
        });
        assert!(found.iter().all(|outcome| *outcome == found[0]));
        found[0].clone().err().unwrap_or_default()
    };
    let same = ["--epochs 1 --threads 2", "--device cpu -q", "", "--isa avx2"];
    assert_eq!(outcome(same), "");
    assert_eq!(outcome(["--device cuda:0", "--device cuda:1", "--device cuda", "--device cuda:3"]), "");
    assert_eq!(
        outcome(["", "", "--epochs 2", ""]),
        "rank 2 was started with --epochs 2, rank 0 with --epochs 1"
    );
    assert_eq!(
        outcome(["--clip 0.1", "", "", ""]),
        "rank 1 was started without --clip, rank 0 with --clip 0.1"
    );
    let overlap = outcome(["", "--resident", "", ""]);
    assert_eq!(overlap, "rank 1 was started with --resident true, rank 0 with --resident false");
}
