//! Ranks on simulated devices: weights, masters and the norm equal one rank's to the bit, whether a part's gradient leaves
//! layer by layer, waits in host memory, or is whole on the device.

use device::Sim;
use policy::config::{Config, Variant};
use policy::rope::RopeScaling;
use policy::weights::ElementType;

use super::tests::each;
use super::*;
use crate::backend::Half;
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
enum Kept {
    /// One micro-batch a part.
    Leaves,
    /// Several, in two windows.
    OnHost,
    /// Several.
    Whole,
}

/// Norms and weights, the same on all ranks, and master weights by rank.
type Trained = (Vec<u64>, Vec<u16>, Vec<u32>);

fn train(ranks: &dyn Ranks, half: Half, tied: bool, parts: &[Vec<Tree>], kept: Kept) -> Trained {
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
    let request =
        MemoryRequest { tokens, largest, rows: 64, part, positions: 16, moments, ranks: count, half };
    let memory = DeviceMemory { free: 8 << 30, workspace: 0 };
    let plan = MemoryPlan::new(&config, None, request, memory).unwrap();
    assert_eq!(plan.windows, count > 1 && kept != Kept::Whole);
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
    let mut optimizer = DeviceOptimizer::new(settings, &mut model).unwrap();
    let shares = Shares::by_layer(model.layout(), count);
    let mut norms = Vec::new();
    for _ in 0..2 {
        let mut sum = PartSum::new(ranks, shares.clone(), parts.len());
        for part in dealt(ranks, parts) {
            model.clear_gradients().unwrap();
            if !part.is_empty() {
                model.accumulate_part(part, 1.0, &Waves, &mut sum).unwrap();
            }
            model.add_part(&mut sum).unwrap();
        }
        compare_received(ranks, &sum.checksums()).unwrap();
        let norm = model.norm_of_all(ranks).unwrap();
        norms.push(norm.to_bits());
        optimizer.step(&mut model, StepScale { gradient: 1.0, norm, rate: 1.0 }).unwrap();
        if count > 1 {
            let (read, write) = (DeviceModel::weight_bits, DeviceModel::replace_weight_bits);
            exchange(ranks, &shares, &mut model, read, write).unwrap();
        }
    }
    let length = model.layout().len();
    let mut weights = vec![0; length];
    model.weight_bits(0..length, &mut weights).unwrap();
    let mut masters = vec![0.0; length];
    for range in shares.of_rank(ranks.rank()).ranges() {
        model.masters(range.start, &mut masters[range.clone()]).unwrap();
    }
    let bits = masters.into_iter().map(f32::to_bits).collect();
    (norms, weights, bits)
}

#[test]
fn ranks_on_devices_train_to_the_bits_of_one() {
    let numbers: [&[u32]; 8] = [&[0, 1], &[2], &[], &[3, 4, 5], &[6], &[7, 8], &[9], &[10, 11]];
    let parts = numbers.map(|numbers| numbers.iter().map(|&number| tree(number)).collect::<Vec<Tree>>());
    for (half, kept, tied, counts) in [
        (Half::BFloat16, Kept::Leaves, false, &[2, 4, 8][..]),
        (Half::BFloat16, Kept::Leaves, true, &[4]),
        (Half::BFloat16, Kept::OnHost, true, &[2]),
        (Half::BFloat16, Kept::Whole, false, &[4]),
        (Half::Float16, Kept::Leaves, false, &[2]),
        (Half::Float16, Kept::Whole, true, &[4]),
    ] {
        let (norms, weights, masters) = train(&Alone, half, tied, &parts, kept);
        for &count in counts {
            let found = each(count, |ranks| train(ranks, half, tied, &parts, kept));
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
}
