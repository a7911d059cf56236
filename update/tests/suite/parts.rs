//! The sum of parts on the device of the tests: the bits and checksums of additions on the host, for each of four ranks. The
//! parts of the others come from a table.

use std::ops::Range;

use device::{Any, Device, Slice};
use record::failure::Result;
use update::backend::Values;
use update::optimizer::shares::Shares;
use update::ranks::{Checksum, Communicator, DeviceSum, PartSum, Transport};

const RANKS: usize = 4;
const ROUNDS: usize = 4;

/// One of four ranks, without the others.
struct Rank(usize);

impl Communicator for Rank {
    fn rank(&self) -> usize {
        self.0
    }
    fn count(&self) -> usize {
        RANKS
    }
    fn split(&self, _: usize) -> Box<dyn Communicator> {
        Box::new(Rank(self.0))
    }
    fn broadcast(&self, _: usize, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn all_gather(&self, _: &[u8], _: &mut [u8]) {}
    fn all_to_all(&self, _: &[u8], _: &mut [u8]) {}
    fn gather_on_first(&self, _: &[u8], _: &[usize], _: &mut [u8]) {}
}

/// What the other ranks send, by round and rank.
struct Table(std::vec::IntoIter<Vec<Vec<f32>>>);

impl Transport<Any> for Table {
    fn name(&self) -> &'static str {
        "table"
    }
    fn all_to_all(
        &mut self,
        _: &dyn Communicator,
        device: &mut Any,
        _: &[Slice<'_, f32>],
        received: &[Slice<'_, f32>],
    ) -> Result<()> {
        let round = self.0.next().unwrap();
        round.iter().zip(received).try_for_each(|(values, place)| device.upload(values, *place))
    }
    fn gather(&mut self, _: &dyn Communicator, _: &mut Any, _: &Shares, _: &Values) -> Result<()> {
        Ok(())
    }
}

fn tree(parts: &[&[f32]]) -> Vec<f32> {
    match parts {
        [one] => one.to_vec(),
        _ => {
            let (left, right) = parts.split_at(parts.len() / 2);
            tree(left).iter().zip(tree(right)).map(|(left, right)| left + right).collect()
        }
    }
}

fn checksum<'a>(pieces: impl Iterator<Item = &'a [f32]>) -> u64 {
    let mut checksum = Checksum::default();
    pieces.for_each(|piece| checksum.add(piece));
    checksum.sum
}

#[test]
fn a_device_adds_parts_as_the_host_does() {
    let length = 300_007;
    let value = |part: usize, at: usize| {
        let bits = (at * 2_654_435_761 + part * 40_503) % 1_000_003;
        (bits as f32 - 500_000.0) * 10f32.powi((bits % 13) as i32 - 6)
    };
    let parts: Vec<Vec<f32>> =
        (0..RANKS * ROUNDS).map(|part| (0..length).map(|at| value(part, at)).collect()).collect();
    let ranges: Vec<_> = [0, 5, 100_001, 100_001, length].windows(2).map(|pair| pair[0]..pair[1]).collect();
    for (rank, waits_on_device) in (0..RANKS).flat_map(|rank| [(rank, true), (rank, false)]) {
        let (own, ranks) = (ranges[rank].clone(), Rank(rank));
        let shares = Shares::consecutive(ranges.clone());
        let mut device = Any::for_tests(rank as u64).unwrap();
        device.reserve(64 << 20).unwrap();
        let waiting = if waits_on_device { PartSum::waiting(ROUNDS) * own.len() } else { 0 };
        let mut sums = DeviceSum::new(&mut device, &shares, RANKS, waiting).unwrap();
        let received = |round: usize| {
            parts[round * RANKS..][..RANKS].iter().map(|part| part[own.clone()].to_vec()).collect()
        };
        let table: Vec<Vec<Vec<f32>>> = (0..ROUNDS).map(received).collect();
        sums.set_transport(Box::new(Table(table.into_iter())));
        let [gradient, staging] = [(); 2].map(|()| device.allocate::<f32>(length).unwrap());
        let summed = device.allocate::<f32>(own.len()).unwrap();
        let mut sum = PartSum::new(&ranks, shares, parts.len());
        for round in 0..ROUNDS {
            device.upload(&parts[round * RANKS + rank], gradient.all()).unwrap();
            let read = |_: &mut Any, range: Range<usize>, _| Ok(gradient.slice(range));
            let write = |range: Range<usize>, place| Ok(summed.slice(place..place + range.len()));
            sum.add_on_device(&mut device, &mut sums, &staging, read, write).unwrap();
        }
        let mut found = vec![0.0; own.len()];
        device.download(summed.all(), &mut found).unwrap();
        let pieces: Vec<&[f32]> = parts.iter().map(|part| &part[own.clone()]).collect();
        assert!(found == tree(&pieces), "rank {rank}, waits on the device {waits_on_device}");
        let of_rank = |from: usize| parts.iter().skip(from).step_by(RANKS);
        let sent = ranges.iter().map(|range| checksum(of_rank(rank).map(|part| &part[range.clone()])));
        let received = (0..RANKS).map(|from| checksum(of_rank(from).map(|part| &part[own.clone()])));
        assert_eq!(sum.checksums(), sent.chain(received).collect::<Vec<_>>(), "rank {rank}");
    }
}
