use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::directory::Policy;
use crate::initial::{Preset, from_preset};

/// Counts how often it is freed.
struct Memory(Arc<AtomicUsize>);

impl Drop for Memory {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn weights() -> OfferedWeights {
    let tensor = OfferedTensor { number: 3, start: 256, length: 12 };
    OfferedWeights {
        handle: "a handle".to_owned(),
        dtype: "bfloat16".to_owned(),
        tensors: BTreeMap::from([("norm".to_owned(), tensor)]),
        checksum: WeightChecksum { words: u64::MAX, placed: 7, values: 12 },
    }
}

fn policy(folder: &Path) -> Policy {
    from_preset(folder, Preset::Tiny, 1).expect("a policy")
}

#[test]
fn an_offer_is_taken_once_and_its_memory_freed_when_its_reader_is_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = policy(&folder.path().join("p"));
    let freed = Arc::new(AtomicUsize::new(0));
    let count = || freed.load(Ordering::SeqCst);
    let made = offer(&policy, "card", &weights(), Memory(freed.clone())).expect("an offer");
    // Neither on another card, nor for equal weights in other files.
    assert!(ask(&policy, "other").is_none());
    let copy = folder.path().join("q");
    std::fs::create_dir(&copy).expect("a folder");
    let other = from_preset(&copy.join("p"), Preset::Tiny, 1).expect("a policy");
    assert_eq!(other.version, policy.version);
    assert!(ask(&other, "card").is_none());

    let delivery = ask(&policy, "card").expect("a delivery");
    assert_eq!((&delivery.weights, count()), (&weights(), 0));
    delivery.finish();
    assert_eq!(count(), 1);
    assert!(ask(&policy, "card").is_none());
    drop(made);
    assert_eq!(count(), 1);
}

#[test]
fn an_offer_ends_when_it_is_declined_withdrawn_or_its_reader_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = policy(&folder.path().join("p"));
    let freed = Arc::new(AtomicUsize::new(0));
    let new = || offer(&policy, "card", &weights(), Memory(freed.clone())).expect("an offer");
    let made = new();
    decline(&policy, "card");
    assert_eq!(freed.load(Ordering::SeqCst), 1);
    drop(made);
    drop(new());
    assert_eq!(freed.load(Ordering::SeqCst), 2);
    let made = new();
    // When a reader is killed, the kernel closes its end too.
    drop(ask(&policy, "card").expect("a delivery"));
    drop(made);
    assert_eq!(freed.load(Ordering::SeqCst), 3);
    decline(&policy, "card");
}

#[test]
fn a_checksum_depends_on_values_and_places_and_not_on_pieces() {
    let bits: Vec<u16> = (0..1001u32).map(|value| (value.wrapping_mul(2_654_435_761) >> 16) as u16).collect();
    let of = |tensors: &[(usize, &[u16])], piece: usize| {
        let mut sum = WeightChecksum::default();
        for (number, bits) in tensors.iter().rev() {
            let pieces: Vec<_> = bits.chunks(piece).enumerate().collect();
            pieces.into_iter().rev().for_each(|(index, bits)| sum.add(*number, index * piece, bits));
        }
        sum
    };
    let (first, second) = bits.split_at(499);
    let whole = of(&[(0, first), (1, second)], 2000);
    assert_eq!(whole, of(&[(0, first), (1, second)], 4));
    assert_eq!(whole.values, 1001);
    assert_ne!(whole, of(&[(1, first), (0, second)], 2000));
    for changed in 0..bits.len() {
        let mut other = bits.clone();
        other[changed] ^= 1 << (changed % 16);
        assert_ne!(whole, of(&[(0, &other[..499]), (1, &other[499..])], 2000), "value {changed}");
    }
    let mut swapped = bits.clone();
    swapped.swap(8, 812);
    assert_ne!(whole, of(&[(0, &swapped[..499]), (1, &swapped[499..])], 2000));
    // By hand: two words of one tensor.
    let mut small = WeightChecksum::default();
    small.add(0, 0, &[1, 2, 0, 0, 5]);
    assert_eq!(small, WeightChecksum { words: 0x0002_0001 + 5, placed: 0x0002_0001 + 2 * 5, values: 5 });
}
