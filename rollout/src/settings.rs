//! The checked settings that a command line comes to.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use device::{ComputeDtype, DeviceKind};
use policy::ownership::{Owner, Ownership};
use record::failure::{Failure, Result};

use crate::absent;
use crate::arguments::{Arguments, SamplingMode};
use crate::by_agent::{ByAgent, Widths};
use crate::engine::Precision;
use crate::episode::joint::{Expand, JointConfig, Mode};
use crate::episode::{EpisodeConfig, ServedAgents};
use crate::fill::Fill;
use crate::lines::RunMetadata;
use crate::placement::DevicePlacement;
use crate::sampling::{self, AgentSampling};
use crate::server::RetryPolicy;

/// One of several shards of the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its number, from 0.
    pub number: u32,
    /// How many there are.
    pub count: u32,
}

impl FromStr for Shard {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Shard> {
        let parsed = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let (number, count) = parsed.filter(|(number, count)| number < count).ok_or_else(|| {
            Failure::usage(format!("--shard {text}: not I/N with I below N"))
                .hint("the two halves are 0/2 and 1/2")
        })?;
        Ok(Shard { number, count })
    }
}

/// A command line that makes sense.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The flags as they were given.
    pub flags: Arguments,
    /// The policy of each agent.
    pub team: Ownership,
    /// Where each policy runs.
    pub placement: DevicePlacement,
    /// How long and how often servers are asked.
    pub retry_policy: RetryPolicy,
    /// How episodes are played.
    pub episodes: Arc<EpisodeConfig>,
    /// The values that all lines share.
    pub metadata: RunMetadata,
    /// How completions are sampled and ended, by agent.
    pub sampling: ByAgent<Arc<AgentSampling>>,
    /// The tasks to play.
    pub shard: Shard,
    /// How many of them must teach.
    pub fill: Option<Fill>,
    /// Worker threads.
    pub threads: usize,
    /// The kind of device on which models run: one of them.
    pub device: DeviceKind,
    /// Type of the operands of matrix products.
    pub dtype: ComputeDtype,
    /// The external environment program, and its time limit for an answer.
    pub env_command: Option<(String, Duration)>,
}

impl Settings {
    /// The precision of products on the CPU.
    pub fn precision(&self) -> Precision {
        if self.dtype == ComputeDtype::Float32 { Precision::Float32 } else { Precision::BFloat16 }
    }
}

impl Arguments {
    /// Checks the values and fills in the defaults.
    ///
    /// # Errors
    /// Usage, with the flag and its valid values. A missing device: unavailable.
    pub fn resolve(self) -> Result<Settings> {
        if !(0.0..=1.0).contains(&self.max_error_rate) {
            return Err(Failure::usage(format!(
                "--max-error-rate {}: must be from 0 to 1",
                self.max_error_rate
            ))
            .hint("0 allows no failed episode, 1 any number of them"));
        }
        if !self.team_weight.is_finite() {
            return Err(Failure::usage(format!("--team-weight {}: must be finite", self.team_weight)));
        }
        let timeout = self.timeout.unwrap_or(60.0);
        let timeout = Duration::try_from_secs_f64(timeout)
            .ok()
            .filter(|timeout| !timeout.is_zero())
            .ok_or_else(|| Failure::usage(format!("--timeout {timeout}: must be above 0 seconds")))?;
        let shard: Shard = self.shard.parse()?;
        let (policies, silent) = absent::split(&self.policy, &self.absent)?;
        let mut placement = DevicePlacement::parse(&policies, &self.device, self.device_memory.as_deref())?;
        silent.into_iter().for_each(|(agent, text)| placement.team.silence(agent, text));
        let (device, threads) = (placement.device(), self.threads(placement.most())?);
        if let Some(isa) = self.isa {
            if device != DeviceKind::Cpu {
                return Err(Failure::usage(format!("--isa has no effect with --device {device}"))
                    .hint("leave out --isa, or use --device cpu"));
            }
            isa.select().map_err(|error| Failure::unavailable(format!("--isa {isa}: {error}")))?;
        }
        let sampling = sampling::by_agent(&self)?;
        let team = placement.team.clone();
        let widths = self.widths(&team, &sampling)?;
        let served = !team.owners().iter().all(Owner::has_weights);
        if served && self.joint.is_some() {
            return Err(Failure::usage(
                "--joint: a server's agent has one candidate, like an absent one, so that its actions have no joint ones",
            )
            .hint("leave out --joint, or let a policy directory play every agent"));
        }
        if self.opponents.0 > 0 && self.joint.is_some() {
            return Err(Failure::usage(
                "--joint: an opponent has one candidate, so that its actions have no joint ones",
            )
            .hint("leave out --joint, or --opponents"));
        }
        let branches = widths.common;
        Ok(Settings {
            retry_policy: self.retry_policy()?,
            episodes: Arc::new(EpisodeConfig {
                turns: self.turns,
                select: self.select,
                team_weight: self.team_weight,
                joint: self.joint_config()?,
                widths,
                served_agents: ServedAgents(served.then(|| Arc::new(team.clone()))),
            }),
            team,
            metadata: RunMetadata {
                step: self.step,
                shard: format!("{}/{}", shard.number, shard.count),
                branches,
                parallel: self.sampling == SamplingMode::Parallel,
            },
            sampling,
            fill: self.fill_config(shard)?,
            shard,
            threads,
            device,
            placement,
            dtype: self.dtype(device)?,
            env_command: self.env_command.clone().map(|command| (command, timeout)),
            flags: self,
        })
    }

    /// The playing threads; by default each card has the same number.
    fn threads(&self, cards: usize) -> Result<usize> {
        match self.threads {
            Some(threads) if threads < cards => Err(Failure::usage(format!(
                "--threads {threads}: a policy has {cards} devices, and each needs a thread that plays on it"
            ))
            .hint(format!("--threads {cards} or more, or leave it out"))),
            Some(threads) => Ok(threads),
            None => {
                let all = std::thread::available_parallelism().map_or(1, usize::from);
                Ok(all.next_multiple_of(cards))
            }
        }
    }

    /// How many candidates each agent has. Parallel episodes have one, and an agent that is not trained has one.
    fn widths(&self, team: &Ownership, sampling: &ByAgent<Arc<AgentSampling>>) -> Result<Widths> {
        let all_greedy = sampling.values().all(|sampling| sampling.params.greedy);
        let widths = Widths::of_flag(&self.branches, if all_greedy { 1 } else { 8 })?;
        sampling::check_candidates(sampling, &widths)?;
        let Some(role) = widths.own.keys().next().filter(|_| self.sampling == SamplingMode::Parallel) else {
            return match widths.own.iter().find(|(role, width)| team.is_served(role) && **width > 1) {
                None => Ok(widths),
                Some((role, width)) => Err(Failure::usage(format!(
                    "--branches {role}={width}: {role} has no policy directory, and so one candidate a turn"
                ))
                .hint(format!("leave out --branches {role}={width}"))),
            };
        };
        Err(Failure::usage(format!(
            "--branches {role}=… has no effect with --sampling parallel, where a task has as many episodes as branches"
        ))
        .hint("--branches K is the number of episodes; --sampling tree has candidates by agent"))
    }

    /// How long and how often servers are asked.
    fn retry_policy(&self) -> Result<RetryPolicy> {
        let seconds = self.server_timeout;
        let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
        let timeout = timeout
            .ok_or_else(|| Failure::usage(format!("--server-timeout {seconds}: must be above 0 seconds")))?;
        Ok(RetryPolicy { timeout, retries: self.server_retries, quiet: self.quiet })
    }

    /// When to stop playing. Shards would have to wait for each other.
    fn fill_config(&self, shard: Shard) -> Result<Option<Fill>> {
        if self.fill.is_some() && shard.count > 1 {
            return Err(Failure::usage(
                "--fill counts the tasks of all shards, which cannot wait for each other",
            )
            .hint("leave out --shard, or --fill"));
        }
        Ok(self.fill)
    }

    /// How joint actions are scored. Parallel episodes have one candidate an agent each, and one path.
    fn joint_config(&self) -> Result<Option<JointConfig>> {
        let Some(mode) = self.joint else { return Ok(None) };
        let parallel = self.sampling == SamplingMode::Parallel;
        let expand = self.expand.unwrap_or(Expand::One);
        let expanded = format!("--expand {expand}");
        for (flag, conflicts) in
            [("--joint cross", mode == Mode::Cross), (expanded.as_str(), expand != Expand::One)]
        {
            if parallel && conflicts {
                return Err(Failure::usage(format!("{flag} has no effect with --sampling parallel"))
                    .hint("each parallel episode has one candidate an agent: use --joint aligned, or --sampling tree"));
            }
        }
        match self.stop_above.filter(|threshold| !threshold.is_finite()) {
            Some(threshold) => Err(Failure::usage(format!("--stop-above {threshold}: must be finite"))),
            None => Ok(Some(JointConfig { mode, expand, stop_above: self.stop_above, parallel })),
        }
    }

    /// The type that was asked for, or the device's default, its first.
    fn dtype(&self, device: DeviceKind) -> Result<ComputeDtype> {
        let has: &[ComputeDtype] = match device {
            DeviceKind::Cpu => &[ComputeDtype::Float32, ComputeDtype::BFloat16],
            DeviceKind::Sim(_) => &[ComputeDtype::Float32, ComputeDtype::BFloat16, ComputeDtype::Float16],
            DeviceKind::Cuda(_) => &[ComputeDtype::BFloat16, ComputeDtype::Float16],
        };
        match self.dtype {
            None => Ok(has[0]),
            Some(asked) if has.contains(&asked) => Ok(asked),
            Some(asked) => {
                let names: Vec<&str> = has.iter().map(|dtype| dtype.name()).collect();
                let cause = format!("--dtype {asked}: --device {device} computes in {}", names.join(" or "));
                Err(Failure::usage(cause).hint(match asked {
                    ComputeDtype::Float16 => "leave out --dtype, or use --device cuda",
                    _ => "leave out --dtype, or use --device cpu",
                }))
            }
        }
    }
}
