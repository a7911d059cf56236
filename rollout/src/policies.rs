//! The policies of a run and their inference engines: one engine per base model, which
//! also serves its adapters.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use device::Devices;
use policy::directory::{Policy, verify};
use policy::ownership::{Owner, Ownership};
use policy::tokenizer::Tokenizer;
use record::failure::{Failure, Result};

use crate::absent::Absent;
use crate::engine::service::{Inbox, Service};
use crate::engine::{Engine, Options};
use crate::generator::{EngineGenerator, Generator};
use crate::inference::{self, Inference, KeptEngines, PlacedModel};
use crate::lines::PolicyLabel;
use crate::opponents::{Opponents, Pool};
use crate::placement::DevicePlacement;
use crate::runtime::spawn_failure;
use crate::server::{RetryPolicy, Server};

/// A policy that is loaded.
pub struct LoadedModel {
    /// Index of its engine, and of its adapter there.
    pub engine: usize,
    pub adapter: Option<u32>,
    pub tokenizer: Arc<Tokenizer>,
    pub version: String,
}

/// State carried over from one part of the input to the next.
#[derive(Default)]
pub struct ResidentState {
    tokenizers: Vec<KeptTokenizer>,
    engines: KeptEngines,
}

impl ResidentState {
    /// Frees the devices for the next stage, until the next part. Closes engines that failed or
    /// would hold too much memory.
    pub fn release(&mut self) {
        self.engines.release();
    }
}

/// A tokenizer, and the files that it was made from.
struct KeptTokenizer {
    files: BTreeMap<OsString, Vec<u8>>,
    tokenizer: Arc<Tokenizer>,
}

/// The policies of a run and their engines.
pub struct Policies {
    inference: Inference,
    /// Playing threads that have their generators.
    playing: AtomicUsize,
    /// In the order of the command line; then earlier versions.
    policies: Vec<PolicyBackend>,
    /// Where each stands in the command line.
    owners: Vec<usize>,
}

/// The player of a policy.
enum PolicyBackend {
    Model(LoadedModel),
    Server(Server),
    /// The text of an agent that is not there.
    Absent(String),
}

impl Policies {
    /// Opens policies, each on its devices. CPU engines share `options.cache_bytes`, the engines of a device its free memory. `kept`
    /// carries tokenizers, sessions and frozen bases across versions: this call reuses its entries, stores
    /// the current ones and drops the others. With a `pool`
    /// also earlier versions of each policy.
    ///
    /// # Errors
    /// See [`Policy::history`], [`inference::load`] and [`Server::open`].
    pub fn open(
        (placement, pool): (&DevicePlacement, Pool),
        options: &Options,
        retry_policy: RetryPolicy,
        mut kept: Option<&mut ResidentState>,
    ) -> Result<Policies> {
        let (mut places, mut opened, mut placed) = (Vec::new(), Vec::new(), Vec::new());
        let mut policies = Vec::new();
        for (place, owner) in placement.team.owners().iter().enumerate() {
            if let Some(text) = &owner.said {
                policies.push(((0, place), PolicyBackend::Absent(text.clone())));
                continue;
            }
            if owner.is_server() {
                policies.push((
                    (0, place),
                    PolicyBackend::Server(Server::open(&owner.directory.to_string_lossy(), retry_policy)?),
                ));
                continue;
            }
            let newest = Policy::open(&owner.directory)?;
            let versions = if pool.0 == 0 { vec![newest] } else { newest.history(pool.0)? };
            for (age, policy) in versions.into_iter().enumerate() {
                placed.push(&placement.devices[place]);
                places.push((age, place));
                opened.push(policy);
            }
        }
        let groups = group_by_base_model(&opened, &placed);
        // First of all: their child processes then share no memory with the engines.
        let models: Vec<&Path> = groups.iter().map(|group| opened[group[0]].model()).collect();
        let tokenizers = match &mut kept {
            Some(kept) => tokenizers(&models, &mut kept.tokenizers)?,
            None => models.iter().map(|model| Tokenizer::load(model).map(Arc::new)).collect::<Result<_>>()?,
        };
        let models: Vec<PlacedModel<'_>> = groups
            .iter()
            .zip(&tokenizers)
            .map(|(group, tokenizer)| PlacedModel {
                policies: group.iter().map(|&index| &opened[index]).collect(),
                stop_ids: tokenizer.stop_ids().to_vec(),
                devices: placed[group[0]],
            })
            .collect();
        // Verification and loading each read all weights, so they run in parallel.
        let (verified, loaded) = thread::scope(|scope| {
            let verifying = thread::Builder::new().spawn_scoped(scope, || verify(&opened));
            let loaded =
                inference::load(&models, placement.memory, options, kept.map(|kept| &mut kept.engines));
            let verified = verifying.map_err(|error| spawn_failure(&error)).and_then(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(Failure::work("the thread that verifies weights panicked")))
            });
            (verified, loaded)
        });
        // Report damaged weights rather than the error that they caused.
        verified?;
        for (engine, (group, tokenizer)) in groups.iter().zip(tokenizers).enumerate() {
            let mut adapters = 0..;
            for &index in group {
                let policy = &opened[index];
                let adapter = policy.base.is_some().then(|| adapters.next()).flatten();
                let (tokenizer, version) = (tokenizer.clone(), policy.version.to_string());
                policies.push((
                    places[index],
                    PolicyBackend::Model(LoadedModel { engine, adapter, tokenizer, version }),
                ));
            }
        }
        policies.sort_by_key(|&(place, _)| place);
        let owners = policies.iter().map(|&((_, place), _)| place).collect();
        let policies = policies.into_iter().map(|(_, backend)| backend).collect();
        Ok(Policies { inference: loaded?, playing: AtomicUsize::new(0), policies, owners })
    }

    /// Labels, in the order of the policies.
    pub fn labels(&self, owners: &[Owner]) -> Vec<PolicyLabel> {
        let label = |(&owner, backend): (&usize, &PolicyBackend)| {
            let (version, served) = match backend {
                PolicyBackend::Model(loaded) => (loaded.version.as_str(), false),
                PolicyBackend::Server(server) => (server.model(), true),
                PolicyBackend::Absent(_) => ("absent", true),
            };
            PolicyLabel { name: owners[owner].name.as_str().into(), version: version.into(), served }
        };
        self.owners.iter().zip(&self.policies).map(label).collect()
    }

    /// The versions of each policy that opponents are drawn from.
    pub fn opponents(&self, owners: &[Owner]) -> Opponents {
        let is_version = |player: &usize, owner: usize| {
            self.owners[*player] == owner && matches!(self.policies[*player], PolicyBackend::Model(_))
        };
        let versions = |owner| (0..self.policies.len()).filter(|player| is_version(player, owner)).collect();
        Opponents { versions: (0..owners.len()).map(versions).collect() }
    }

    /// Checks that stop strings can be found among the tokens of every policy.
    pub fn check_stop_strings(&self) -> Result<()> {
        self.policies.iter().try_for_each(|backend| match backend {
            PolicyBackend::Model(loaded) => loaded.tokenizer.token_bytes(&[]).map(drop),
            PolicyBackend::Server(_) | PolicyBackend::Absent(_) => Ok(()),
        })
    }

    /// The policies that are loaded.
    pub fn models(&self) -> impl Iterator<Item = &LoadedModel> {
        self.policies.iter().filter_map(|backend| match backend {
            PolicyBackend::Model(loaded) => Some(loaded),
            PolicyBackend::Server(_) | PolicyBackend::Absent(_) => None,
        })
    }

    /// What runs the engines for one thread, in their order, each with its index there. Threads use the devices of a policy
    /// in turn.
    pub fn services(&self) -> Result<Vec<(Arc<Service>, usize)>> {
        Ok(match &self.inference {
            Inference::Cpu(engines) => {
                let own = engines.clone();
                let service = Service::start(move || Ok(own.iter().map(Engine::decoder).collect()))?;
                (0..engines.len()).map(|model| (service.clone(), model)).collect()
            }
            Inference::Device(services) => {
                let thread = self.playing.fetch_add(1, Ordering::Relaxed);
                let of_thread = |own: &Vec<Arc<Service>>| (own[thread % own.len()].clone(), 0);
                services.iter().map(of_thread).collect()
            }
        })
    }

    /// The generators of one thread, in the order of the policies.
    pub fn generators(&self) -> Result<Vec<Box<dyn Generator>>> {
        let models = self.services()?;
        let inbox = Inbox::new();
        let generator = |backend: &PolicyBackend| -> Box<dyn Generator> {
            match backend {
                PolicyBackend::Server(server) => Box::new(server.client()),
                PolicyBackend::Absent(text) => Box::new(Absent::new(text)),
                PolicyBackend::Model(loaded) => {
                    let (service, model) = &models[loaded.engine];
                    let client = service.client(*model, loaded.adapter, &inbox);
                    Box::new(EngineGenerator::new(client, loaded.tokenizer.clone()))
                }
            }
        };
        Ok(self.policies.iter().map(generator).collect())
    }
}

/// The tokenizers of the models, reused from `kept` if their files are the same.
fn tokenizers(models: &[&Path], kept: &mut Vec<KeptTokenizer>) -> Result<Vec<Arc<Tokenizer>>> {
    let mut used = Vec::new();
    for model in models {
        let files = tokenizer_files(model)?;
        let tokenizer = match kept.iter().find(|kept| kept.files == files) {
            Some(kept) => kept.tokenizer.clone(),
            None => Arc::new(Tokenizer::load(model)?),
        };
        used.push(KeptTokenizer { files, tokenizer });
    }
    *kept = used;
    Ok(kept.iter().map(|kept| kept.tokenizer.clone()).collect())
}

/// The files of a version that stay from one to the next: a tokenizer is made from some of them.
fn tokenizer_files(model: &Path) -> Result<BTreeMap<OsString, Vec<u8>>> {
    let failure = |error: std::io::Error| Failure::io(format!("{}: {error}", model.display()));
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(model).map_err(failure)? {
        let (name, path) = entry.map(|entry| (entry.file_name(), entry.path())).map_err(failure)?;
        let changes = ["version.json", "trainer_state.json"].iter().any(|own| name == *own);
        let weights = path.extension().is_some_and(|extension| extension == "safetensors");
        if !changes && !weights && path.is_file() {
            files.insert(name, fs::read(&path).map_err(failure)?);
        }
    }
    Ok(files)
}

/// Indices of policies by base model and devices: adapters of one base are together, with the base itself if it plays too.
fn group_by_base_model(policies: &[Policy], devices: &[&Devices]) -> Vec<Vec<usize>> {
    let mut groups: Vec<((PathBuf, &Devices), Vec<usize>)> = Vec::new();
    for (index, (policy, devices)) in policies.iter().zip(devices).enumerate() {
        // A link to the same files is the same model. A broken link is refused on opening.
        let files = policy.model();
        let model = (files.canonicalize().unwrap_or_else(|_| files.to_owned()), *devices);
        match groups.iter_mut().find(|(other, _)| *other == model) {
            Some((_, group)) => group.push(index),
            None => groups.push((model, vec![index])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Index of the policy that plays `agent`.
pub fn policy_of(team: &Ownership, agent: &str) -> Result<usize> {
    team.of(agent).ok_or_else(|| {
        Failure::usage(format!("no --policy for agent {agent}"))
            .hint(format!("add --policy {agent}=DIR, or let one policy play all agents: --policy DIR"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::adapter::{Adapter, Target};
    use policy::initial::{Preset, from_base, from_preset};

    #[test]
    fn versions_with_the_same_tokenizer_share_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let version = |seed: u64| {
            let policy = from_preset(&folder.path().join(format!("{seed}")), Preset::Tiny, seed);
            policy.expect("a policy").files
        };
        let [first, second, third] = [1, 2, 3].map(version);
        let mut kept = Vec::new();
        let mut open = |model: &Path| tokenizers(&[model], &mut kept).expect("a tokenizer").remove(0);
        let shared = open(&first);
        assert!(Arc::ptr_eq(&shared, &open(&second)), "other weights, the same tokenizer");
        let path = third.join("tokenizer_config.json");
        let text = fs::read_to_string(&path).expect("a file");
        fs::write(&path, text + " ").expect("written");
        let other = open(&third);
        assert!(!Arc::ptr_eq(&shared, &other) && Arc::ptr_eq(&other, &open(&third)));
        assert!(!Arc::ptr_eq(&shared, &open(&first)), "only the last are kept");
    }

    #[test]
    fn a_base_and_its_adapters_are_one_model() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        for (seed, name) in ["base", "other"].into_iter().enumerate() {
            from_preset(&place(name), Preset::Tiny, seed as u64).expect("a policy");
        }
        let new = Adapter::new(2, 2.0, vec![Target::Query]);
        for (name, base) in [("first", "base"), ("foreign", "other"), ("second", "base")] {
            from_base(&place(name), &place(base), &new, 1).expect("an adapter");
        }
        std::os::unix::fs::symlink(place("base"), place("link")).expect("a link");
        let names = ["first", "foreign", "base", "second", "other", "link"];
        let policies: Vec<Policy> = names.map(|name| Policy::open(&place(name)).expect("a policy")).into();
        let [one, other] = ["cuda:0", "cuda:1"].map(|text| Devices::parse("", text).expect("a device"));
        assert_eq!(group_by_base_model(&policies, &[&one; 6]), [vec![0, 2, 3, 5], vec![1, 4]]);
        // Adapters with a device each are apart.
        let apart = [&one, &one, &other, &other, &one, &one];
        assert_eq!(group_by_base_model(&policies, &apart), [vec![0, 5], vec![1, 4], vec![2, 3]]);
    }
}
