//! Tests of the run directory: examples, and random training runs that may be killed at any disk call,
//! compared with a reference.

use proptest::prelude::*;

use super::*;
use crate::disk::kill;

const POLICIES: [&str; 2] = ["planner", "tool"];

struct SimulatedRun {
    folder: tempfile::TempDir,
}

impl SimulatedRun {
    fn new() -> SimulatedRun {
        let simulated = SimulatedRun { folder: tempfile::tempdir().unwrap() };
        for name in POLICIES {
            simulated.publish(name, 0).unwrap();
        }
        simulated
    }

    fn open(&self) -> Result<(RunFiles, u64)> {
        let run = RunFiles::make(&self.folder.path().join("run"))?;
        run.make_folders()?;
        let mut run = run.with_policies(POLICIES.map(str::to_owned).to_vec());
        let step = run.go_back()?;
        Ok((run, step))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join("run").join(path)
    }

    /// Acts as `update`: publishes a version without its state and makes it current.
    fn publish(&self, name: &str, step: u64) -> Result<()> {
        let folder = self.at(&format!("policies/{name}/step-{step:06}"));
        disk::make(&folder)?;
        disk::write(&folder.join("version.json"), &format!("{{\"version\": \"{step}:{name}{step}\"}}"))?;
        disk::link(&format!("step-{step:06}"), &self.at(&format!("policies/{name}/current")))
    }

    /// Saves the state of the current version. Removes states except the last two, and versions except the
    /// newest two and those with a state.
    fn save(&self, name: &str, step: u64) -> Result<()> {
        let policy = self.at(&format!("policies/{name}"));
        let state = |step: &str| policy.join(step).join("trainer_state.json");
        disk::write(&state(&format!("step-{step:06}")), "{}")?;
        let mut steps = disk::names(&policy)?;
        steps.retain(|name| name.starts_with("step-"));
        let (mut states, newest) = (0, steps.len());
        for (number, step) in steps.iter().enumerate().rev() {
            // Version 0 has no state, yet training can resume from it until a state is saved.
            let has_state = state(step).is_file() || step == "step-000000";
            states += usize::from(has_state);
            if has_state && states > 2 {
                disk::remove(&state(step))?;
            }
            if number + 2 < newest && (!has_state || states > 2) {
                disk::remove(&policy.join(step))?;
            }
        }
        Ok(())
    }

    fn versions(&self, step: u64) -> Vec<String> {
        let names = |name: &str| -> Vec<String> {
            let link = fs::read_link(self.at(&format!("policies/{name}/current"))).unwrap();
            let all = disk::names(&self.at(&format!("policies/{name}"))).unwrap();
            assert!(all.iter().all(|other| *other <= format!("step-{step:06}")), "{all:?} after {step}");
            vec![link.display().to_string()]
        };
        POLICIES.iter().flat_map(|name| names(name)).collect()
    }
}

#[test]
fn names_that_were_not_made_here_are_left_alone() {
    let simulated = SimulatedRun::new();
    assert_eq!(simulated.open().unwrap().1, 0);
    for name in
        ["000000 copy", "000000.bak", "0+BASH_VERSINFO[$(touch owned)]", "00000", "7", "-00001", "+00001"]
    {
        disk::make(&simulated.at(&format!("steps/{name}"))).unwrap();
        fs::copy(simulated.at("steps/000000/done"), simulated.at(&format!("steps/{name}/done"))).unwrap();
    }
    let (run, step) = simulated.open().unwrap();
    assert_eq!((step, run.committed().unwrap()), (0, BTreeSet::from([0])));
}

#[test]
fn a_done_that_is_not_of_this_run_moves_nothing() {
    let simulated = SimulatedRun::new();
    simulated.open().unwrap();
    let victim = simulated.folder.path().join("victim/step-000009");
    fs::create_dir_all(&victim).unwrap();
    for policies in [
        "{\"../../victim\":\"1:abc\"}",
        "{\"tool\":\"0:tool0\",\"../../victim\":\"1:abc\"}",
        "{\"tool\":\"x\"}",
        "{\"tool\":3}",
        "{}",
        "[]",
    ] {
        fs::write(simulated.at("steps/000000/done"), format!("{{\"step\":0,\"policies\":{policies}}}"))
            .unwrap();
        let failure = simulated.open().unwrap_err();
        assert!(failure.code == 65 && failure.message.contains("steps/000000/done: "), "{failure:?}");
        assert!(victim.is_dir());
    }
    fs::write(simulated.at("steps/000000/done"), "{\"step\":0,\"policies\":{\"tool\":\"3:x\"}}").unwrap();
    assert!(simulated.open().unwrap_err().message.contains("names step-000003 of tool, which is not there"));
    fs::write(simulated.at("steps/000000/done"), "{\"step\":0,\"policies\":{\"tool\":\"0:x\"}}").unwrap();
    let failure = simulated.open().unwrap_err();
    assert!(failure.code == 65 && failure.message.contains("step-000000 is version 0:tool0"), "{failure:?}");
}

#[test]
fn a_step_that_is_missing_below_one_that_counts_is_said() {
    let simulated = SimulatedRun::new();
    let (mut run, _) = simulated.open().unwrap();
    for step in 1..=3 {
        disk::make(&run.step(step)).unwrap();
        for name in POLICIES {
            simulated.publish(name, step).unwrap();
            simulated.save(name, step).unwrap();
        }
        run.commit(step, &run.versions().unwrap(), true).unwrap();
    }
    fs::remove_file(simulated.at("steps/000002/done")).unwrap();
    let failure = simulated.open().unwrap_err();
    assert!(
        failure.code == 65 && failure.message.ends_with("000002/done is missing, but step 3 is committed")
    );
}

/// A stretch of training: number of steps, how often states are saved, and the disk
/// call at which it is killed.
#[derive(Clone, Debug)]
struct Stretch {
    steps: u64,
    save_every: u64,
    resident: bool,
    killed_after: Option<usize>,
}

fn stretches() -> impl Strategy<Value = Vec<Stretch>> {
    let stretch = (1..6_u64, 1..4_u64, any::<bool>(), prop::option::weighted(0.8, 0..150_usize));
    let stretch = stretch.prop_map(|(steps, save_every, resident, killed_after)| Stretch {
        steps,
        save_every: if resident { save_every } else { 1 },
        resident,
        killed_after,
    });
    prop::collection::vec(stretch, 1..8)
}

/// What an observer knows: steps up to `counts` were trained, steps after `trained` were not.
struct Known {
    counts: u64,
    trained: u64,
}

/// Trains as `pipeline.sh` does. A step answered before its state is saved is committed with the
/// next answer, or at the end.
fn train(simulated: &SimulatedRun, stretch: &Stretch, known: &mut Known) -> Result<()> {
    let (mut run, begun) = simulated.open()?;
    known.counts = begun;
    for step in begun + 1..=begun + stretch.steps {
        disk::make(&run.step(step))?;
        disk::write(&run.step(step).join("samples.jsonl"), "{}\n")?;
        for name in POLICIES {
            simulated.publish(name, step)?;
        }
        known.trained = known.trained.max(step);
        if !stretch.resident {
            POLICIES.iter().try_for_each(|name| simulated.save(name, step))?;
        }
        // This answer implies that the states of earlier steps are saved, where `save_every` asked for it.
        if stretch.resident && (step - 1).is_multiple_of(stretch.save_every) {
            run.settle()?;
            known.counts = known.counts.max(step - 1);
        }
        run.commit(step, &run.versions()?, !stretch.resident)?;
        if !stretch.resident {
            known.counts = step;
        } else if step.is_multiple_of(stretch.save_every) || step == begun + stretch.steps {
            POLICIES.iter().try_for_each(|name| simulated.save(name, step))?;
        }
    }
    run.settle()?;
    known.counts = begun + stretch.steps;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]
    #[test]
    fn killed_at_any_call_no_step_that_counts_is_lost(stretches in stretches()) {
        let simulated = SimulatedRun::new();
        let mut known = Known { counts: 0, trained: 0 };
        for stretch in &stretches {
            kill::after(stretch.killed_after);
            let outcome = train(&simulated, stretch, &mut known);
            kill::after(None);
            if let Err(failure) = outcome {
                prop_assert_eq!(failure.message, "killed");
            }
            let (run, step) = simulated.open().unwrap();
            prop_assert!(step >= known.counts, "{} was lost: back to {step}", known.counts);
            prop_assert!(step <= known.trained, "{step} was never trained");
            prop_assert_eq!(run.committed().unwrap(), (0..=step).collect::<BTreeSet<_>>());
            let current = format!("step-{step:06}");
            prop_assert_eq!(simulated.versions(step), [current.clone(), current]);
            if step > 0 {
                for name in POLICIES {
                    let state = simulated.at(&format!("policies/{name}/step-{step:06}/trainer_state.json"));
                    prop_assert!(state.is_file(), "{name} goes on without its state");
                }
            }
            known = Known { counts: step, trained: step };
        }
    }
}

#[test]
fn a_lock_that_is_about_to_be_free_is_waited_for() {
    let simulated = SimulatedRun::new();
    let (run, _) = simulated.open().unwrap();
    let held = run.lock().unwrap();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(held);
    });
    run.lock().unwrap();
    ends.join().unwrap();
}
