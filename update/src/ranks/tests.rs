//! Ranks as threads: what an exchange leaves on each of them.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use clap::CommandFactory;

use super::*;

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

impl Ranks for Thread<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.table.places.len()
    }

    fn split(&self, _: usize) -> Box<dyn Ranks> {
        Box::new(Alone)
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
        let told = |policy| processes.told(policy, || Ok(format!("{trains:?}"))).unwrap();
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
pub(super) fn each<T: Send>(count: usize, work: impl Fn(&dyn Ranks) -> T + Sync) -> Vec<T> {
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
fn numbers(of: usize, length: usize) -> Vec<f32> {
    let value = |index: usize| {
        let bits = (index * 2_654_435_761 + of * 40_503) % 1_000_003;
        (bits as f32 - 500_000.0) * 10f32.powi((bits % 13) as i32 - 6)
    };
    (0..length).map(value).collect()
}

#[test]
fn a_sum_is_a_tree_in_the_order_of_ranks_whatever_the_length() {
    for length in [0, 1, 5, 1000] {
        let sums = each(4, |ranks| {
            let mut values = numbers(ranks.rank(), length);
            sum(ranks, &mut values);
            values
        });
        let parts: Vec<Vec<f32>> = (0..4).map(|rank| numbers(rank, length)).collect();
        let tree = |at: usize| (parts[0][at] + parts[1][at]) + (parts[2][at] + parts[3][at]);
        let expected: Vec<f32> = (0..length).map(tree).collect();
        assert!(sums.iter().all(|sum| *sum == expected), "{length}");
        let in_line = |at: usize| parts[0][at] + parts[1][at] + parts[2][at] + parts[3][at];
        assert!(length < 1000 || (0..length).any(|at| in_line(at) != expected[at]), "the order matters");
    }
}

#[test]
fn bytes_of_any_size_are_gathered_and_rank_0_is_heard() {
    for found in each(4, |ranks| gather(ranks, &vec![ranks.rank() as u8; ranks.rank() * 3])) {
        assert_eq!(found, [vec![], vec![1; 3], vec![2; 6], vec![3; 9]]);
    }
    let heard = each(2, |ranks| first(ranks, || Ok(format!("rank {}", ranks.rank()))).unwrap());
    assert_eq!(heard, ["rank 0", "rank 0"]);
    let shares = each(2, |ranks| share(ranks, 8));
    assert_eq!(shares, [0..4, 4..8]);
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
                &slices,
                &mut own,
                |own, from, values| {
                    values.copy_from_slice(&own[from..][..values.len()]);
                    Ok(())
                },
                |own, from, values| {
                    own[from..][..values.len()].copy_from_slice(values);
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
        complete(ranks, &mut own);
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
