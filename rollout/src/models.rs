//! The policies of a run, opened, and what runs them: one engine a model, which serves all adapters of that model.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use device::Choice;
use policy::directory::Policy;
use policy::tokenizer::Tokenizer;
use record::failure::Result;

use crate::engine::paged::{self, service::Service};
use crate::engine::{Decoder, Engine, Options};
use crate::generator::{EngineGenerator, Generator, Share};

/// A policy that is loaded.
struct Loaded {
    /// Which of the engines runs it, and as which of that engine's adapters.
    engine: usize,
    adapter: Option<u32>,
    tokenizer: Arc<Tokenizer>,
    version: String,
}

/// Where a model runs.
enum Where {
    /// On the processor.
    Here(Engine),
    /// On a device, in a thread of its own.
    There(Service),
}

impl Where {
    fn handle(&self) -> Result<Handle<'_>> {
        Ok(match self {
            Where::Here(engine) => Handle::Decoder(Rc::new(RefCell::new(engine.decoder()?))),
            Where::There(service) => Handle::Service(service),
        })
    }
}

/// What one thread has of an engine.
enum Handle<'a> {
    Decoder(Rc<RefCell<Decoder>>),
    Service(&'a Service),
}

/// The policies of a run and the engines that run them.
pub struct Models {
    engines: Vec<Where>,
    policies: Vec<Loaded>,
}

impl Models {
    /// Opens policies. Engines on the processor divide `options.cache_bytes`, those on a device what is free there.
    ///
    /// # Errors
    /// As [`Engine::load_all`] and [`paged::start`].
    pub fn open(directories: &[&Path], device: Choice, options: &Options) -> Result<Models> {
        let opened: Vec<Policy> =
            directories.iter().map(|directory| Policy::open(directory)).collect::<Result<_>>()?;
        let groups = by_model(&opened);
        let cache_bytes = options.cache_bytes / groups.len().max(1);
        let (mut engines, mut policies) = (Vec::new(), Vec::new());
        for (engine, group) in groups.iter().enumerate() {
            let members: Vec<&Policy> = group.iter().map(|&index| &opened[index]).collect();
            let first = members[0];
            let tokenizer = Arc::new(Tokenizer::load(first.model())?);
            let stop_ids = tokenizer.stop_ids().to_vec();
            let left = (groups.len() - engine) as u64;
            engines.push(match device {
                Choice::Cpu => {
                    let options = Options { cache_bytes, stop_ids, ..options.clone() };
                    Where::Here(Engine::load_all(&members, &options)?)
                }
                _ => Where::There(paged::start(&members, device, left, stop_ids)?),
            });
            for (adapter, &index) in group.iter().enumerate() {
                let policy = &opened[index];
                let adapter = policy.base.is_some().then_some(adapter as u32);
                let (tokenizer, version) = (tokenizer.clone(), policy.version.to_string());
                policies.push((index, Loaded { engine, adapter, tokenizer, version }));
            }
        }
        policies.sort_by_key(|&(index, _)| index);
        Ok(Models { engines, policies: policies.into_iter().map(|(_, loaded)| loaded).collect() })
    }

    /// Versions, in the order of the policies.
    pub fn versions(&self) -> impl Iterator<Item = &str> {
        self.policies.iter().map(|policy| policy.version.as_str())
    }

    /// The generators of one thread, in the order of the policies.
    ///
    /// # Errors
    /// As [`Engine::decoder`].
    pub fn generators(&self) -> Result<Vec<Box<dyn Generator>>> {
        let handles: Vec<Handle> = self.engines.iter().map(Where::handle).collect::<Result<_>>()?;
        let generator = |policy: &Loaded| -> Box<dyn Generator> {
            let tokenizer = policy.tokenizer.clone();
            match &handles[policy.engine] {
                Handle::Decoder(decoder) => {
                    let share = Share::new(decoder.clone(), policy.adapter);
                    Box::new(EngineGenerator::new(share, tokenizer))
                }
                Handle::Service(service) => {
                    Box::new(EngineGenerator::new(service.client(policy.adapter), tokenizer))
                }
            }
        };
        Ok(self.policies.iter().map(generator).collect())
    }
}

/// Policies by the model that they are: adapters of one base are together, every other policy is by itself.
fn by_model(policies: &[Policy]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, policy) in policies.iter().enumerate() {
        let same = |group: &&mut Vec<usize>| policy.base.is_some() && policies[group[0]].base == policy.base;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}
