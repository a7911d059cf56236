//! Ranks on simulated devices: weights, masters and the norm equal one rank's to the bit, whether a part's gradient leaves
//! layer by layer, waits in host memory, or is whole on the device.

use device::{Device, Sim, Slice};
use policy::config::{Config, Variant};
use policy::rope::RopeScaling;
use policy::weights::ElementType;

use super::tests::{each, numbers, shares};
use super::*;
use crate::backend::{Half, Values};
use crate::model::{DeviceMemory, DeviceModel, Layout, MemoryPlan, MemoryRequest, Parameters, RowLoss};
use crate::optimizer::on_device::DeviceOptimizer;
use crate::optimizer::{Method, Settings, StepScale};
use crate::tree::{Sequence, Tree, pack};

struct Waves;

impl RowLoss for Waves {
    fn rows(&self, tree: usize, packed: &Tree, _: &[f32], derivative: &mut [f32]) {
        for (row, derivative) in packed.rows.iter().zip(derivative) {
            *derivative = ((tree * 31 + row.index as usize * 3 + packed.ids.len()) as f32 * 0.7).sin();
        }
    }
}

fn decoder(tie_word_embeddings: bool) -> (Config, Parameters) {
    let config = Config {
        family: "test",
        hidden_size: 64,
        intermediate_size: 88,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 24,
        vocab_size: 97,
        rms_norm_eps: 1e-6,
        rope_theta: 1e3,
        rope_scaling: RopeScaling::None,
        tie_word_embeddings,
        qk_norm: true,
        attention_bias: true,
        rope_layers: vec![true; 2],
        max_positions: 64,
        variant: Variant::default(),
        dtype: ElementType::F32,
    };
    let mut parameters = Parameters::zeros(&std::sync::Arc::new(Layout::new(&config)));
    for (at, value) in parameters.values.iter_mut().enumerate() {
        *value = ((at * 2_654_435_761 % 1_000_003) as f32 / 1e6 - 0.5) * 0.3;
    }
    (config, parameters)
}

/// A tree of two sequences, which differs from number to number.
fn tree(number: u32) -> Tree {
    let prompt: Vec<u32> = (0..5).map(|at| (number * 13 + at * 7) % 97).collect();
    let answers: Vec<Vec<u32>> =
        (0..2).map(|branch| (0..3).map(|at| (number * 5 + branch * 11 + at * 3) % 97).collect()).collect();
    let sequences: Vec<Sequence> =
        answers.iter().map(|completion| Sequence { prompt: &prompt, completion }).collect();
    pack(&sequences, true)
}

/// How a part's gradient is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kept {
    /// One micro-batch a part.
    Leaves,
    /// Several, in two windows.
    OnHost,
    /// Several.
    Whole,
}

/// Norms and weights, the same on all ranks, and master weights by rank.
pub(super) type Trained = (Vec<u64>, Vec<u16>, Vec<u32>);

/// Makes a rank's transport.
type Connect<'a> = dyn Fn(&dyn Communicator, &mut Sim) -> Result<Box<dyn Transport<Sim>>> + Sync + 'a;

/// How sums pass and wait.
pub(super) struct Way<'a> {
    pub transport: &'a Connect<'a>,
    pub waits_on_device: bool,
    /// Values that a rank sends at once.
    pub at_once: usize,
}

/// Through the host, and everything else on the device.
pub(super) const THROUGH_HOST: Way<'static> =
    Way { transport: &|_, _| Ok(Box::new(ThroughHost::default())), waits_on_device: true, at_once: 1 << 24 };

pub(super) fn train(
    ranks: &dyn Communicator,
    half: Half,
    tied: bool,
    parts: &[Vec<Tree>],
    kept: Kept,
    way: &Way,
) -> Result<Trained> {
    let (config, parameters) = decoder(tied);
    let lengths = || parts.iter().map(|part| part.iter().map(Tree::len));
    let largest = lengths().flatten().max().unwrap();
    let all = lengths().map(Iterator::sum).max().unwrap();
    let (tokens, part) = match kept {
        Kept::Leaves => (all, all),
        Kept::OnHost => (largest, largest),
        Kept::Whole => (largest, all),
    };
    let (moments, count) = (Some(8), ranks.count());
    let waiting = PartSum::waiting(parts.len() / count);
    let (rows, positions) = (64, 16);
    let request =
        MemoryRequest { tokens, largest, rows, part, positions, moments, ranks: count, waiting, half };
    let memory = DeviceMemory { free: 8 << 30, workspace: 0 };
    let plan = MemoryPlan::new(&config, None, request, memory).unwrap();
    assert_eq!(plan.windows, count > 1 && kept != Kept::Whole);
    assert_eq!(plan.waits_on_device, waiting > 0);
    let plan = MemoryPlan { waits_on_device: way.waits_on_device && waiting > 0, ..plan };
    let sim = Sim::new(1, 0).unwrap();
    let mut model = DeviceModel::of_rank(sim, &config, None, &parameters, &plan, ranks.rank()).unwrap();
    let settings = Settings {
        method: Method::Adamw,
        lr: 1e-2,
        lr_other: 1e-2,
        betas: (0.9, 0.99),
        weight_decay: 0.1,
        max_grad_norm: 0.5,
    };
    let transport = (way.transport)(ranks, model.device())?;
    let sums = model.parts().unwrap();
    sums.set_transport(transport);
    sums.limit(way.at_once);
    let mut optimizer = DeviceOptimizer::new(settings, &mut model).unwrap();
    let shares = Shares::by_layer(model.layout(), count);
    let mut norms = Vec::new();
    for _ in 0..2 {
        let mut sum = PartSum::new(ranks, shares.clone(), parts.len());
        for part in own_parts(ranks, parts) {
            model.clear_gradients().unwrap();
            if !part.is_empty() {
                model.accumulate_part(part, 1.0, &Waves, &mut sum)?;
            }
            model.add_part(&mut sum)?;
        }
        compare_received(ranks, &sum.checksums())?;
        let norm = model.norm_of_all(ranks).unwrap();
        norms.push(norm.to_bits());
        optimizer.step(&mut model, StepScale { gradient: 1.0, norm, rate: 1.0 }).unwrap();
        model.gather_weights(ranks)?;
    }
    let length = model.layout().len();
    let mut weights = vec![0; length];
    model.weight_bits(0..length, &mut weights).unwrap();
    let sum =
        (1..).step_by(2).zip(&weights).map(|(factor, &bits): (u64, &u16)| factor * u64::from(bits)).sum();
    assert_eq!(model.weight_checksum().unwrap(), (count > 1).then_some(sum));
    let mut masters = vec![0.0; length];
    for range in shares.of_rank(ranks.rank()).ranges() {
        model.masters(range.start, &mut masters[range.clone()]).unwrap();
    }
    let bits = masters.into_iter().map(f32::to_bits).collect();
    Ok((norms, weights, bits))
}

/// Parts of one tree, of none, and of several.
pub(super) fn parts() -> Vec<Vec<Tree>> {
    let numbers: [&[u32]; 8] = [&[0, 1], &[2], &[], &[3, 4, 5], &[6], &[7, 8], &[9], &[10, 11]];
    numbers.iter().map(|numbers| numbers.iter().map(|&number| tree(number)).collect()).collect()
}

/// Asserts that these numbers of ranks have the weights, masters and norms of one.
pub(super) fn assert_as_one(half: Half, kept: Kept, tied: bool, counts: &[usize], way: &Way) {
    let parts = parts();
    let (norms, weights, masters) = train(&SingleProcess, half, tied, &parts, kept, &THROUGH_HOST).unwrap();
    for &count in counts {
        let found = each(count, |ranks| train(ranks, half, tied, &parts, kept, way).unwrap());
        let mut joined = vec![0; masters.len()];
        for (rank, (own_norms, own_weights, own)) in found.into_iter().enumerate() {
            assert_eq!(own_norms, norms, "{half:?} {kept:?} tied {tied} {count} ranks, rank {rank}");
            assert!(own_weights == weights, "{half:?} {kept:?} tied {tied} {count} ranks, rank {rank}");
            // What a rank does not have is 0.
            joined.iter_mut().zip(own).for_each(|(all, own)| *all |= own);
        }
        assert!(joined == masters, "{half:?} {kept:?} tied {tied} {count} ranks");
    }
}

#[test]
fn ranks_on_devices_train_to_the_bits_of_one() {
    for (half, kept, tied, counts) in [
        (Half::BFloat16, Kept::Leaves, false, &[2, 4, 8][..]),
        (Half::BFloat16, Kept::Leaves, true, &[4]),
        (Half::BFloat16, Kept::OnHost, true, &[2]),
        (Half::BFloat16, Kept::Whole, false, &[4]),
        (Half::Float16, Kept::Leaves, false, &[2]),
        (Half::Float16, Kept::Whole, true, &[4]),
    ] {
        assert_as_one(half, kept, tied, counts, &THROUGH_HOST);
    }
}

/// Sums that wait in host memory, and pieces that are shorter than a layer.
#[test]
fn neither_where_sums_wait_nor_how_much_passes_at_once_changes_a_bit() {
    for (counts, waits_on_device) in [(&[1, 2][..], false), (&[2, 4], true)] {
        let way = Way { waits_on_device, at_once: 8192, ..THROUGH_HOST };
        assert_as_one(Half::BFloat16, Kept::Leaves, false, counts, &way);
    }
}

/// The sum of 8 parts on a device is the sum on the host.
#[test]
fn a_device_adds_parts_as_the_host_does() {
    let (length, parts) = (20_000, 8);
    let gradients: Vec<Vec<f32>> = (0..parts).map(|part| numbers(part, length)).collect();
    for count in [1, 2, 4, 8] {
        let shares = shares(length, 3, count);
        let host = each(count, |ranks| {
            let mut sum = PartSum::new(ranks, shares.clone(), parts);
            let mut summed = vec![0.0; shares.of_rank(ranks.rank()).len()];
            for gradient in own_parts(ranks, &gradients) {
                for _ in 0..shares.regions() {
                    let read = |_: &mut Vec<f32>, range: Range<usize>, values: &mut [f32]| {
                        values.copy_from_slice(&gradient[range]);
                        Ok(())
                    };
                    let write = |summed: &mut Vec<f32>, _: Range<usize>, place, values: &[f32]| {
                        summed[place..][..values.len()].copy_from_slice(values);
                        Ok(())
                    };
                    sum.add(&mut summed, read, write).unwrap();
                }
            }
            (summed, sum.checksums())
        });
        let on_device = each(count, |ranks| {
            let mut sim = Sim::new(1, ranks.rank() as u64).unwrap();
            sim.reserve(64 << 20).unwrap();
            let mut sum = PartSum::new(ranks, shares.clone(), parts);
            let own = shares.of_rank(ranks.rank()).len();
            let waiting = PartSum::waiting(parts / count) * own;
            let mut sums = DeviceSum::new(&mut sim, &shares, count, waiting).unwrap();
            let (staging, summed) = (sim.allocate(length).unwrap(), sim.allocate(own).unwrap());
            for gradient in own_parts(ranks, &gradients) {
                for _ in 0..shares.regions() {
                    sum.add_on_device(
                        &mut sim,
                        &mut sums,
                        &staging,
                        |sim, range, room| sim.upload(&gradient[range], room).map(|()| room),
                        |range, place| Ok(summed.slice(place..place + range.len())),
                    )
                    .unwrap();
                }
            }
            let mut values = vec![0.0; own];
            sim.download(summed.all(), &mut values).unwrap();
            (values, sum.checksums())
        });
        for ((values, checksums), (own, own_checksums)) in on_device.iter().zip(&host) {
            assert!(values.iter().map(|x| x.to_bits()).eq(own.iter().map(|x| x.to_bits())), "{count} ranks");
            assert_eq!(checksums, own_checksums, "{count} ranks");
        }
    }
}

/// Flips a bit of what rank 1 receives from the last rank.
struct Flips(ThroughHost);

impl Transport<Sim> for Flips {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn all_to_all(
        &mut self,
        ranks: &dyn Communicator,
        device: &mut Sim,
        sent: &[Slice<'_, f32>],
        received: &[Slice<'_, f32>],
    ) -> Result<()> {
        self.0.all_to_all(ranks, device, sent, received)?;
        let place = received[ranks.count() - 1];
        if ranks.rank() == 1 && !place.is_empty() {
            let mut value = [0.0f32];
            device.download(place.slice(..1), &mut value)?;
            device.upload(&[f32::from_bits(value[0].to_bits() ^ 1 << 20)], place.slice(..1))?;
        }
        Ok(())
    }

    fn gather(
        &mut self,
        ranks: &dyn Communicator,
        device: &mut Sim,
        shares: &Shares,
        weights: &Values,
    ) -> Result<()> {
        self.0.gather(ranks, device, shares, weights)
    }
}

#[test]
fn a_bit_flipped_between_devices_is_refused_by_both_names() {
    let way = Way { transport: &|_, _| Ok(Box::new(Flips(ThroughHost::default()))), ..THROUGH_HOST };
    let outcomes = each(4, |ranks| {
        train(ranks, Half::BFloat16, false, &parts(), Kept::Leaves, &way).map_err(|failure| failure.message)
    });
    for outcome in outcomes {
        let message = outcome.unwrap_err();
        let named = message.starts_with("rank 1 on ") && message.contains("another gradient than rank 3 on ");
        assert!(named, "{message}");
    }
}
