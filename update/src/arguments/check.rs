//! Which flags contradict each other, and which values are out of range.
//!
//! A flag that has no effect with the others is an error: whoever passes `--clip` with `--objective nll` expects
//! something else.

use device::{DeviceKind, Devices};
use record::failure::{Failure, Result};
use record::stage::choice;

use super::Arguments;
use crate::hardware::Hardware;
use crate::loss_config::{LossConfig, Objective, RatioLevel};
use crate::minibatch::Batching;
use crate::optimizer::{self, Method, on_device};
use crate::parts;
use crate::samples::Needs;
use crate::settings::{Messages, Publishing, Reading, Settings, TrainingConfig, Work};

impl Arguments {
    /// The settings that these flags come to, once they are checked.
    ///
    /// # Errors
    /// Usage (exit 2) for values out of range and flags that have no effect; 69 for a device, an instruction set or
    /// threads that this machine does not have.
    pub fn settings(&self) -> Result<Settings> {
        let hardware = self.hardware()?;
        if hardware.kind != DeviceKind::Cpu {
            on_device::check(self.optimizer)?;
        }
        hardware.check_device(self.dry_run)?;
        self.check_effects(hardware.kind)?;
        self.check_needs()?;
        if let Some(isa) = self.isa {
            isa.select().map_err(|error| Failure::unavailable(format!("--isa {isa}: {error}")))?;
        }
        self.check_ranges()?;
        self.ranks.map_or(Ok(()), |ranks| parts::check_ranks(self.parts as usize, ranks as usize))?;
        hardware.check_threads()?;
        let compares = self.objective != Objective::Nll;
        Ok(Settings {
            policies: self.policy.clone(),
            references: self.reference.clone(),
            work: if let Some(file) = &self.check {
                Work::Check { per_token: file.clone() }
            } else if self.dry_run {
                Work::Plan { ranks: self.ranks.map(|ranks| ranks as usize) }
            } else {
                Work::Train
            },
            reading: Reading {
                allow_incomplete: self.allow_incomplete,
                pass_through: self.pass_through,
                in_parts: self.resident,
                needs: Needs {
                    logprobs: compares || self.check.is_some(),
                    advantage: compares && self.check.is_none(),
                    full_distribution: compares && self.check.is_none() && !self.allow_truncated_sampling,
                },
            },
            training: self.training(),
            rates: self.lr.iter().cloned().collect(),
            warmup: self.lr_warmup,
            hardware,
            publishing: Publishing {
                keep: self.keep as usize,
                resident: self.resident,
                save_every: self.save_every,
            },
            side_by_side: self.side_by_side,
            messages: Messages { quiet: self.quiet },
        })
    }

    fn hardware(&self) -> Result<Hardware> {
        let devices = Devices::parse("--device", &self.device)?;
        let kind = devices.first();
        Ok(Hardware {
            device: self.device.clone(),
            devices,
            kind,
            dtype: self.dtype.unwrap_or(Hardware::default_dtype(kind)),
            threads: self.threads.map_or_else(Hardware::all_threads, |threads| threads as usize),
            memory: self.device_memory.map(|gigabytes| (gigabytes * 1e9) as u64),
        })
    }

    fn training(&self) -> TrainingConfig {
        TrainingConfig {
            loss: self.loss(),
            aggregate: self.aggregate.how,
            max_tokens: self.aggregate.length,
            batching: Batching {
                minibatches: self.minibatches,
                epochs: self.epochs,
                seed: self.seed,
                tokens: self.max_tokens_per_batch as usize,
                parts: self.parts as usize,
            },
            optimizer: optimizer::Settings {
                method: self.optimizer,
                lr: 0.0, // set for each policy by Settings::training_of, as the warm-up
                lr_other: self.lr_other.unwrap_or(0.0),
                betas: match self.betas[..] {
                    [first, second] => (first, second),
                    _ => (0.9, 0.95),
                },
                weight_decay: self.weight_decay,
                max_grad_norm: self.max_grad_norm,
            },
            schedule: self.schedule,
            warmup: 0,
            max_logprob_gap: self.max_logprob_gap,
        }
    }

    fn loss(&self) -> LossConfig {
        LossConfig {
            objective: self.objective,
            clip_range: match self.clip[..] {
                [low, high] => (low, high),
                [both] => (both, both),
                _ => (0.2, 0.2),
            },
            ratio: self.ratio.unwrap_or_default(),
            kl: self.kl,
            entropy: self.entropy,
            importance: self.importance,
            mask_negative_above: self.mask_negative_above,
        }
    }

    /// Fails for a flag that another setting leaves without effect.
    fn check_effects(&self, device: DeviceKind) -> Result<()> {
        let cpu = device == DeviceKind::Cpu;
        let nll = self.objective == Objective::Nll;
        let cispo = self.objective == Objective::Cispo;
        let optimizer = format!("--optimizer {}", choice(&self.optimizer));
        let device = format!("--device {}", self.device);
        let (muon, sgd) = (self.optimizer == Method::Muon, self.optimizer == Method::Sgd);
        let sequence = self.ratio == Some(RatioLevel::Sequence);
        // A flag, whether it was given although another setting leaves it without effect, and that setting.
        let idle = [
            ("--ratio sequence", cispo && sequence, "--objective cispo"),
            ("--ratio sequence", nll && sequence, "--objective nll"),
            ("--entropy", nll && self.entropy != 0.0, "--objective nll"),
            ("--mask-negative-above", nll && self.mask_negative_above.is_some(), "--objective nll"),
            ("--clip", nll && !self.clip.is_empty(), "--objective nll"),
            ("--kl", nll && self.kl != 0.0, "--objective nll"),
            ("--importance", nll && self.importance.is_some(), "--objective nll"),
            ("--max-logprob-gap", nll && self.max_logprob_gap.is_some(), "--objective nll"),
            ("--reference", self.kl == 0.0 && !self.reference.is_empty(), "--kl 0"),
            ("--lr-other", !muon && self.lr_other.is_some(), &optimizer),
            ("--betas", sgd && !self.betas.is_empty(), &optimizer),
            ("--isa", !cpu && self.isa.is_some(), &device),
            ("--device-memory", cpu && self.device_memory.is_some(), "--device cpu"),
        ];
        match idle.iter().find(|(_, idle, _)| *idle) {
            Some((flag, _, setting)) => Err(Failure::usage(format!("{flag} has no effect with {setting}"))
                .hint(format!("leave {flag} out"))),
            None => Ok(()),
        }
    }

    /// Fails where a flag needs another that is missing.
    fn check_needs(&self) -> Result<()> {
        if self.kl > 0.0 && self.reference.is_empty() {
            return Err(Failure::usage("--kl needs --reference")
                .hint("name the reference policy, such as --reference run/base"));
        }
        if self.optimizer == Method::Muon && self.lr_other.is_none() {
            return Err(Failure::usage("--optimizer muon needs --lr-other").hint(
                "Muon updates the layers' matrices at --lr; AdamW updates the rest at --lr-other, such as 1e-3",
            ));
        }
        Ok(())
    }

    fn check_ranges(&self) -> Result<()> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let not_negative = |x: f64| x.is_finite() && x >= 0.0;
        let below_one = |x: f64| (0.0..1.0).contains(&x);
        let betas =
            self.betas.is_empty() || (self.betas.len() == 2 && self.betas.iter().all(|&b| below_one(b)));
        let clip = self.clip.len() <= 2
            && self.clip.iter().all(|&x| positive(x))
            && self.clip.first().is_none_or(|&low| low < 1.0);
        let checks = [
            (
                "--parts",
                "a power of two up to 65536, such as 8",
                self.parts.is_power_of_two() && self.parts <= 65_536,
            ),
            ("--clip", "one or two numbers above 0, the first below 1, such as 0.2,0.28", clip),
            ("--kl", "0 or above", not_negative(self.kl)),
            ("--entropy", "0 or above", not_negative(self.entropy)),
            ("--mask-negative-above", "a finite number", self.mask_negative_above.is_none_or(f64::is_finite)),
            ("--lr-other", "0 or above", self.lr_other.is_none_or(not_negative)),
            ("--weight-decay", "0 or above", not_negative(self.weight_decay)),
            ("--betas", "two numbers from 0 to below 1, such as 0.9,0.95", betas),
            ("--max-grad-norm", "0 (off) or above", not_negative(self.max_grad_norm)),
            ("--device-memory", "above 0", self.device_memory.is_none_or(positive)),
            ("--max-logprob-gap", "0 (off) or above", self.max_logprob_gap.is_none_or(not_negative)),
        ];
        match checks.iter().find(|(_, _, fine)| !fine) {
            Some((flag, range, _)) => {
                Err(Failure::usage(format!("{flag} must be {range}")).hint("see update --help"))
            }
            None => Ok(()),
        }
    }
}
