//! The order of syncs, and a power loss at any moment of publishing.
//!
//! The disk is simulated. The bytes of a file survive once the file was synced, the entries of a directory
//! once the directory was. Any number of the earliest later changes to a directory survive.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use record::philox::{Draws, Part, Stream};
use serde_json::{Map, json};

use super::*;
use crate::config::Config;
use crate::decoder::Tensor;
use crate::directory::Policy;
use crate::initial;
use crate::layout::{Version, step_name, steps};
use crate::publish::{self, Data, NewTensor, NewVersion};
use crate::retention::{Retention, retire};
use crate::weights::Weights;

#[test]
fn directories_are_synced_from_the_inside_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    fs::create_dir_all(root.join("a/b")).expect("folders");
    for name in ["one", "a/two", "a/b/three"] {
        write(&root.join(name), name.as_bytes()).expect("written");
    }
    symlink("nowhere", root.join("a/link")).expect("a link");
    let (mut files, mut directories) = (Vec::new(), Vec::new());
    list(root, &mut files, &mut directories).expect("a list");
    files.sort();
    assert_eq!(files, ["a/b/three", "a/two", "one"].map(|name| root.join(name)));
    assert_eq!(directories, [root.join("a/b"), root.join("a"), root.to_owned()]);
    synchronize(root).expect("synchronized");
    let missing = synchronize(&root.join("none")).expect_err("no such folder");
    assert_eq!(missing.code, record::failure::IO);
}

/// A change of the disk, with paths below the traced folder.
#[derive(Clone, Debug)]
enum Event {
    Create(PathBuf),
    Directory(PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    Sync(PathBuf, Option<Arc<Vec<u8>>>),
    /// The caller was told that it is done.
    Done,
}

static TRACE: Mutex<Option<(PathBuf, Vec<Event>)>> = Mutex::new(None);

/// Records a change below the traced folder.
pub(crate) fn trace(change: &str, path: &Path, other: &Path) {
    let mut trace = TRACE.lock().expect("no panic");
    let Some((folder, events)) = trace.as_mut() else { return };
    let Ok(inside) = path.strip_prefix(&folder) else { return };
    let inside = inside.to_owned();
    events.push(match change {
        "create" => Event::Create(inside),
        "directory" => Event::Directory(inside),
        "link" => Event::Link(inside, other.to_owned()),
        "rename" => Event::Rename(inside, other.strip_prefix(&folder).expect("inside").to_owned()),
        "remove" => Event::Remove(inside),
        _ => Event::Sync(inside, path.is_file().then(|| Arc::new(fs::read(path).expect("a file")))),
    });
}

/// Entries of a directory, and what each leads to.
type Entries = BTreeMap<String, usize>;

#[derive(Clone, Debug)]
enum Node {
    /// With the bytes that survive.
    File(Option<Arc<Vec<u8>>>),
    Link(PathBuf),
    Directory {
        now: Entries,
        durable: Entries,
        /// Entries set or removed together, since the directory was synced.
        pending: Vec<Vec<(String, Option<usize>)>>,
    },
}

struct Disk(Vec<Node>);

impl Disk {
    fn new() -> Disk {
        Disk(vec![Disk::directory()])
    }

    fn directory() -> Node {
        Node::Directory { now: Entries::new(), durable: Entries::new(), pending: Vec::new() }
    }

    /// The node of a path; node 0 is the folder.
    fn find(&self, path: &Path) -> Option<usize> {
        path.iter().try_fold(0, |node, name| match &self.0[node] {
            Node::Directory { now, .. } => now.get(name.to_str()?).copied(),
            _ => None,
        })
    }

    fn change(&mut self, folder: &Path, changes: Vec<(String, Option<usize>)>) {
        let at = self.find(folder).expect("a folder");
        let Node::Directory { now, pending, .. } = &mut self.0[at] else { panic!("no directory") };
        for (name, node) in &changes {
            match node {
                Some(node) => now.insert(name.clone(), *node),
                None => now.remove(name),
            };
        }
        pending.push(changes);
    }

    fn add(&mut self, path: &Path, node: Node) {
        self.0.push(node);
        self.change(path.parent().expect("a parent"), vec![(name(path), Some(self.0.len() - 1))]);
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Create(path) => self.add(path, Node::File(None)),
            Event::Directory(path) => self.add(path, Disk::directory()),
            Event::Link(path, target) => self.add(path, Node::Link(target.clone())),
            Event::Rename(from, to) => {
                let node = self.find(from);
                self.change(from.parent().expect("a parent"), vec![(name(from), None), (name(to), node)]);
            }
            Event::Remove(path) => {
                let Some(node) = self.find(path) else { return };
                if let Node::Directory { now, .. } = self.0[node].clone() {
                    now.keys().for_each(|name| self.apply(&Event::Remove(path.join(name))));
                }
                self.change(path.parent().expect("a parent"), vec![(name(path), None)]);
            }
            Event::Sync(path, bytes) => {
                // The folder around it is not traced.
                let Some(node) = self.find(path) else { return };
                match &mut self.0[node] {
                    Node::File(durable) => *durable = bytes.clone(),
                    Node::Directory { now, durable, pending } => {
                        durable.clone_from(now);
                        pending.clear();
                    }
                    Node::Link(_) => {}
                }
            }
            Event::Done => {}
        }
    }

    /// Writes what a power loss leaves of a directory.
    fn leave(&self, node: usize, place: &Path, draws: &mut Draws) {
        match &self.0[node] {
            Node::Link(target) => symlink(target, place).expect("a link"),
            Node::File(Some(bytes)) => fs::write(place, &**bytes).expect("written"),
            Node::File(None) => fs::write(place, vec![0; draws.below(300) as usize]).expect("written"),
            Node::Directory { durable, pending, .. } => {
                fs::create_dir_all(place).expect("a folder");
                let mut left = durable.clone();
                for (name, node) in pending[..draws.below(pending.len() as u32 + 1) as usize].iter().flatten()
                {
                    match node {
                        Some(node) => left.insert(name.clone(), *node),
                        None => left.remove(name),
                    };
                }
                left.iter().for_each(|(name, &node)| self.leave(node, &place.join(name), draws));
            }
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned()
}

/// What a run does, one after the other: makes a policy, publishes a version, another of the same number, and three more, of
/// which the last lets only itself and its source stay.
const CALLS: usize = 6;
const SOURCES: [usize; CALLS] = [0, 0, 0, 2, 3, 4];
/// The call whose version has the files of its source.
const SAME: usize = 3;
/// The call whose version is published first and synchronized then.
const LATE: usize = 5;

fn view((tensor, values): &(Tensor, Vec<f32>)) -> NewTensor<'_> {
    NewTensor { name: &tensor.name, shape: &tensor.shape, data: Data::F32(values) }
}

/// Runs the calls from `first` on; `versions` are those that earlier calls returned.
fn run(root: &Path, first: usize, versions: &mut Vec<Version>) -> Result<()> {
    for call in first..CALLS {
        let version = if call == 0 {
            let config = root.with_file_name("config.json");
            let sizes = json!({
                "model_type": "qwen3", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                "num_attention_heads": 1, "head_dim": 16, "num_key_value_heads": 1, "vocab_size": 512,
                "max_position_embeddings": 64, "tie_word_embeddings": true,
            });
            fs::write(&config, sizes.to_string()).expect("written");
            initial::from_config(root, &config, 1)?.version
        } else {
            let from = Policy::open_version(root, &versions[SOURCES[call]].to_string())?;
            from.verify()?;
            let (weights, config) = (Weights::open(&from.files)?, Config::load(&from.files)?);
            let state = crate::training_state::training_state(&from)?;
            assert_eq!(state.is_some(), SOURCES[call] > 0, "the training state is there");
            let state = Map::new();
            let mut values = Vec::new();
            for tensor in config.tensors() {
                let scaled = weights.to_f32(&tensor.name)?.iter().map(|value| value * call as f32).collect();
                values.push((tensor, scaled));
            }
            let tensors: Vec<NewTensor> = values.iter().map(view).collect();
            let next = NewVersion {
                input: &format!("call {call}"),
                tensors: &tensors,
                optimizer: if call == LATE { &[] } else { &tensors },
                trainer_state: (call != LATE).then_some(&state),
            };
            let pinned = [from.version.clone()];
            let retention = Retention { keep: CALLS - call, pinned: &pinned };
            let version = match call {
                SAME => publish::publish_same(
                    &from,
                    &NewVersion { tensors: &[], optimizer: &[], ..next },
                    &retention,
                )?,
                _ => publish::publish(&from, &next, &retention)?,
            };
            if call == LATE {
                publish::synchronize(root, &version)?;
            }
            retire(root, from.version.step, &version, &retention)?;
            version
        };
        versions.truncate(call);
        versions.push(version);
        if let Some((_, events)) = TRACE.lock().expect("no panic").as_mut() {
            events.push(Event::Done);
        }
    }
    Ok(())
}

/// Resumes a run: `version` becomes the newest, and later ones are removed.
fn go_back(root: &Path, version: &Version) {
    fs::remove_file(root.join("current")).expect("a link");
    symlink(step_name(version.step), root.join("current")).expect("a link");
    for later in steps(root).expect("versions").into_iter().filter(|&step| step > version.step) {
        fs::remove_dir_all(root.join(step_name(later))).expect("removed");
    }
}

/// Every file below a directory with its bytes, and links with their targets.
fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(root).expect("a folder") {
        let path = entry.expect("an entry").path();
        let metadata = fs::symlink_metadata(&path).expect("metadata");
        if metadata.is_dir() {
            let inside = contents(&path).into_iter();
            all.extend(inside.map(|(below, bytes)| (Path::new(&name(&path)).join(below), bytes)));
        } else if name(&path) != ".lock" {
            let bytes = match metadata.is_symlink() {
                true => fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes(),
                false => fs::read(&path).expect("a file"),
            };
            all.insert(name(&path).into(), bytes);
        }
    }
    all
}

#[test]
fn no_power_loss_loses_a_version() {
    // In memory, where a sync costs nothing.
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = tempfile::tempdir_in(place).expect("a folder");
    let whole = folder.path().join("whole");
    fs::create_dir(&whole).expect("a folder");
    *TRACE.lock().expect("no panic") = Some((whole.clone(), Vec::new()));
    let mut versions = Vec::new();
    run(&whole.join("policy"), 0, &mut versions).expect("a whole run");
    let (_, events) = TRACE.lock().expect("no panic").take().expect("events");
    let finished = contents(&whole.join("policy"));

    let mut draws = Draws::new(Stream::named(1, &[Part::Text("power loss")]));
    let mut at = BTreeMap::new();
    for loss in 0..1000 {
        let cut = draws.below(events.len() as u32 + 1) as usize;
        let mut disk = Disk::new();
        events[..cut].iter().for_each(|event| disk.apply(event));
        let done = events[..cut].iter().filter(|event| matches!(event, Event::Done)).count();
        *at.entry(done).or_insert(0) += 1;
        let left = folder.path().join("left");
        disk.leave(0, &left, &mut draws);
        let root = left.join("policy");
        let mut resume = done;
        if done == LATE {
            go_back(&root, &versions[SOURCES[LATE]]);
        }
        let context =
            || format!("loss {loss} after {cut} of {} changes: {:?}", events.len(), events.get(cut));
        match Policy::open(&root) {
            Ok(policy) => {
                policy.verify().unwrap_or_else(|failure| panic!("{}: {failure}", context()));
                let mut allowed: Vec<&Version> = versions
                    .get(done.saturating_sub(1)..=done.min(CALLS - 1))
                    .expect("versions")
                    .iter()
                    .collect();
                // While a version is replaced, the one it is made from is current.
                allowed.extend(SOURCES.get(done).map(|&source| &versions[source]));
                assert!(allowed.contains(&&policy.version), "{}: {}", context(), policy.version);
                resume = resume.max(1);
            }
            Err(failure) => assert!(done == 0 && !root.exists(), "{}: {failure}", context()),
        }
        let mut again = versions[..resume].to_vec();
        run(&root, resume, &mut again).unwrap_or_else(|failure| panic!("{}: {failure}", context()));
        assert_eq!(again, versions, "{}", context());
        if resume < CALLS {
            assert!(contents(&root) == finished, "{}", context());
        }
        fs::remove_dir_all(&left).expect("removed");
    }
    writeln!(std::io::stderr(), "1000 power losses by finished calls: {at:?}; 0 versions lost")
        .expect("stderr");
}

/// A limit of threads, processes or memory: the files are synced one after the other, by the only thread.
#[cfg(target_os = "linux")]
#[test]
fn files_are_synced_without_further_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["a", "b", "c"] {
        fs::write(folder.path().join(name), name).expect("written");
    }
    // SAFETY: the child computes and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages: u64 = pages.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
        // Room for this work, and none for another stack.
        let bytes = pages * 4096 + (1 << 20);
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: the limit is valid.
        let limited = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } == 0;
        // Threads that ended have freed some.
        let start = |_| std::thread::Builder::new().spawn(std::thread::park).is_err();
        let alone = (0..1000).any(start);
        let done = std::panic::catch_unwind(|| synchronize(folder.path()).is_ok()).unwrap_or(false);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!limited) + 2 * i32::from(!alone) + 4 * i32::from(!done)) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid, and the child was not waited for.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFEXITED(status), "{status}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "1: no limit, 2: no lack of threads, 4: not synced");
}
