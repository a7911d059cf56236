//! A runner takes a version's weights from another holder of the device's memory, and reads the file wherever that fails.

use super::simulator::on;
use crate::engine::Completion;
use crate::engine::device::runner::DeviceRunner;
use crate::engine::scheduler::Scheduler;
use crate::engine::tests::support::{Made, TINY, drain, request};
use device::{Device, SharedMemory, Sim};
use half::bf16;
use policy::directory::Policy;
use policy::hand_over::{Offer, OfferedTensor, OfferedWeights, WeightChecksum, offer};
use std::collections::BTreeMap;

fn complete(scheduler: &mut Scheduler<DeviceRunner<Sim, f32>>) -> Vec<(u64, Vec<Completion>)> {
    for id in 0..2 {
        scheduler.submit(None, request(id, 40, 2, 6)).expect("accepted");
    }
    drain(scheduler)
}

fn scheduler(policy: &Policy) -> Scheduler<DeviceRunner<Sim, f32>> {
    on(Sim::new(1, 0).expect("a simulator"), std::slice::from_ref(policy), 48, 16, 16)
}

/// A version's weights in memory that is shared, in the order of their names.
fn shared(policy: &Policy) -> (OfferedWeights, SharedMemory) {
    let weights = policy.weights().expect("weights");
    let (mut all, mut tensors, mut checksum) = (Vec::new(), BTreeMap::new(), WeightChecksum::default());
    for (number, tensor) in policy.config.tensors().iter().enumerate() {
        let values: Vec<bf16> =
            weights.to_f32(&tensor.name).expect("values").into_iter().map(bf16::from_f32).collect();
        checksum.add(number, 0, &values.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
        let start = 2 * all.len() as u64;
        tensors.insert(tensor.name.clone(), OfferedTensor { number, start, length: values.len() });
        all.extend(values);
    }
    let mut holder = Sim::new(1, 0).expect("a simulator");
    holder.reserve((2 * all.len() as u64).next_multiple_of(256)).expect("memory");
    let buffer = holder.allocate::<bf16>(all.len()).expect("a buffer");
    holder.upload(&all, buffer.all()).expect("uploaded");
    let memory = holder.share().expect("shared");
    let (handle, dtype) = (memory.handle().to_owned(), "bfloat16".to_owned());
    (OfferedWeights { handle, dtype, tensors, checksum }, memory)
}

fn narrow(seed: u64) -> Made {
    TINY.stored_as("bfloat16", seed)
}

#[test]
fn weights_are_taken_from_the_device_or_else_from_the_file() {
    let versions = [narrow(7), narrow(8)];
    let policy = &versions[1].policy;
    let wanted = complete(&mut scheduler(policy));
    type Change = fn(&mut OfferedWeights);
    let changes: [(&str, bool, Change); 7] = [
        ("as they are", true, |_| {}),
        ("other values", false, |weights| weights.checksum.words ^= 1),
        ("other places", false, |weights| {
            let starts: Vec<u64> = weights.tensors.values().map(|tensor| tensor.start).collect();
            let moved = starts.iter().rev();
            weights.tensors.values_mut().zip(moved).for_each(|(tensor, start)| tensor.start = *start);
        }),
        ("another type", false, |weights| weights.dtype = "float16".to_owned()),
        ("too few", false, |weights| drop(weights.tensors.pop_first())),
        ("beyond the end", false, |weights| {
            weights.tensors.values_mut().for_each(|tensor| tensor.start += 1 << 30);
        }),
        ("memory of a process that has ended", false, |weights| {
            weights.handle = "/proc/2147483647/fd/3".to_owned();
        }),
    ];
    let mut staying = scheduler(&versions[0].policy);
    assert_ne!(complete(&mut staying), wanted);
    for (name, is_taken, change) in changes {
        let (mut weights, memory) = shared(policy);
        change(&mut weights);
        let made: Offer = offer(policy, "a card", &weights, memory).expect("an offer");
        staying.release().expect("released");
        let policies = std::slice::from_ref(policy);
        assert!(!staying.take(policies, "another card").expect("an answer"), "{name}");
        assert_eq!(staying.take(policies, "a card").expect("an answer"), is_taken, "{name}");
        assert!(staying.reload(policies, &[3]).expect("reloaded"), "{name}");
        assert_eq!(complete(&mut staying), wanted, "{name}");
        drop(made);
        // Back to the other version.
        staying.release().expect("released");
        assert!(staying.reload(std::slice::from_ref(&versions[0].policy), &[3]).expect("reloaded"));
    }
    // A release in between forgets what was taken.
    let (weights, memory) = shared(policy);
    let made = offer(policy, "a card", &weights, memory).expect("an offer");
    staying.release().expect("released");
    assert!(staying.take(std::slice::from_ref(policy), "a card").expect("an answer"));
    staying.release().expect("released");
    let older = std::slice::from_ref(&versions[0].policy);
    assert!(staying.reload(older, &[3]).expect("reloaded"));
    assert_eq!(complete(&mut staying), complete(&mut scheduler(&versions[0].policy)));
    drop(made);
}
