//! Ranks on several cards, with libraries that stand in for CUDA and NCCL (`stand_in/driver.c`, `stand_in/nccl.c`): the calls
//! that processes make, and how they end when one fails, dies or has no NCCL.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use troupe_tests::{contents, mpirun, root, update_mpi};

use crate::stand_in::{Fixture, REWARD, ROLLOUT};

/// Scored samples of a policy, and the program that trains it.
struct Cards {
    fixture: Fixture,
    program: PathBuf,
}

impl Cards {
    /// None without CUDA's libraries or MPI.
    fn new(has_nccl: bool, policies: &str) -> Option<Cards> {
        let (fixture, program) = (Fixture::new()?, update_mpi()?.to_path_buf());
        if has_nccl {
            let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
            let mut compile = Command::new(compiler);
            compile.args([
                "-std=c11",
                "-O1",
                "-w",
                "-shared",
                "-fPIC",
                "-pthread",
                "-Wl,-soname,libnccl.so.2",
            ]);
            compile.arg("-o").arg(fixture.path("libnccl.so.2"));
            compile.arg(root().join("tests/tests/stand_in/nccl.c"));
            assert!(compile.status().expect("a C compiler").success());
        }
        let rollout = ROLLOUT.replace("--policy p", policies);
        let play = format!(
            "policy init q --preset tiny --seed 2 && envs tasks plan-path --count 8 --seed 7 | {rollout} --max-tokens 6 | \
             {REWARD} | group --quiet | advantage --quiet >samples"
        );
        let (code, printed) = fixture.run(&play, &[]);
        assert_eq!(code, 0, "{printed}");
        Some(Cards { fixture, program })
    }

    /// Trains on four cards, from the same versions each time: the exit code, what was printed, the metrics and the files of
    /// the policy.
    fn learn(
        &self,
        flags: &str,
        variable: (&str, &str),
    ) -> (i32, String, Vec<Value>, BTreeMap<String, Vec<u8>>) {
        let place = self.fixture.path("");
        for left in ["log", "groups"] {
            let _ = std::fs::remove_file(self.fixture.path(left));
        }
        let learn = format!(
            "rm -rf trained && mkdir trained && cp -r p q trained && cd trained && {} '{}' {flags} --device cuda \
             --max-logprob-gap 0 --quiet <../samples >../metrics",
            mpirun(4),
            self.program.display()
        );
        let groups = self.fixture.path("groups");
        let variables = [
            ("STAND_IN_CARDS", "4"),
            ("STAND_IN_NCCL_LOG", groups.to_str().expect("a name")),
            ("TMPDIR", place.to_str().expect("a name")),
            variable,
        ];
        let (code, printed) = self.fixture.run(&learn, &variables);
        let metrics = std::fs::read_to_string(self.fixture.path("metrics")).expect("lines");
        let metrics = metrics.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let metrics = metrics.filter(|line: &Value| line["type"] == "metrics").collect();
        (code, printed, metrics, contents(&self.fixture.path("trained/p")))
    }

    /// The groups of NCCL's calls.
    fn groups(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.fixture.path("groups")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn gradients_and_weights_go_from_card_to_card() {
    let Some(cards) = Cards::new(true, "--policy p") else { return };
    let (code, printed, metrics, made) = cards.learn("--policy p --parts 8 --minibatches 1", ("CARDS", ""));
    assert!(code == 0 && printed.is_empty(), "{code} {printed}");
    assert_eq!(metrics[0]["timing"]["transport"], "nccl", "{metrics:?}");
    let groups = cards.groups();
    let of =
        |rank: usize| groups.iter().filter(|line| line.starts_with(&format!("rank {rank} of 4 "))).count();
    // Embedding, three layers and the last norm: two rounds of parts for the gradient, as often for each of two agents' parts in
    // it, and once the weights.
    assert_eq!([0, 1, 2, 3].map(of), [5 * (3 * 2 + 1); 4], "{groups:?}");
    let log = cards.fixture.log();
    for kernel in ["add_tree", "add_values", "add_checksums"] {
        assert!(log.iter().any(|line| line.starts_with(&format!("launch {kernel} "))), "no {kernel}");
    }
    // In the order of the other work on the rank's card.
    for line in &groups {
        let words: Vec<&str> = line.split_whitespace().collect();
        let stream = format!("stream {} of GPU {}", words[words.len() - 1], words[1]);
        assert!(log.contains(&stream), "{line}");
    }
    // The same files as through the host, which is chosen without a word.
    let (code, printed, metrics, through_host) =
        cards.learn("--policy p --parts 8 --minibatches 1", ("TROUPE_NCCL", "off"));
    assert!(code == 0 && printed.is_empty(), "{code} {printed}");
    assert!(cards.groups().is_empty() && metrics[0]["timing"]["transport"] == "mpi", "{metrics:?}");
    let differ: Vec<_> = made.iter().filter(|(name, bytes)| through_host.get(*name) != Some(bytes)).collect();
    assert!(differ.is_empty() && made.len() == through_host.len(), "{:?}", through_host.keys());
}

#[test]
fn policies_side_by_side_have_a_communicator_each() {
    let Some(cards) = Cards::new(true, "--policy tool=p --policy planner=q") else { return };
    let flags = "--policy tool=p --policy planner=q --side-by-side --parts 2";
    let (code, printed, metrics, _) = cards.learn(flags, ("CARDS", ""));
    assert!(code == 0 && printed.is_empty(), "{code} {printed}");
    assert!(metrics.len() == 2 && metrics.iter().all(|line| line["timing"]["transport"] == "nccl"));
    let groups = cards.groups();
    assert!(!groups.is_empty() && groups.iter().all(|line| line.contains(" of 2 group ")), "{groups:?}");
}

#[test]
fn a_rank_whose_nccl_fails_or_that_dies_ends_all_and_nothing_is_published() {
    let Some(cards) = Cards::new(true, "--policy p") else { return };
    let before = contents(&cards.fixture.path("p"));
    let published = |made: &BTreeMap<String, Vec<u8>>| {
        made.iter().filter(|(name, _)| !name.starts_with('.')).ne(before.iter())
    };
    let (code, printed, metrics, made) = cards.learn("--policy p --parts 4", ("STAND_IN_NCCL_FAILS", "1 3"));
    let cause = ", cuda:1: NCCL: communication: remote process exited or there was a network error; nothing was \
                 published\nhint: NCCL_DEBUG=WARN";
    assert!(
        code == 1 && printed.contains("update: rank 1 on ") && printed.contains(cause),
        "{code} {printed}"
    );
    assert!(metrics.is_empty() && !published(&made), "{:?}", made.keys());
    let (code, printed, metrics, made) = cards.learn("--policy p --parts 4", ("STAND_IN_NCCL_DIES", "2 3"));
    assert!(code != 0 && metrics.is_empty() && !published(&made), "{code} {printed} {:?}", made.keys());
}

#[test]
fn without_nccl_gradients_pass_through_the_host_and_that_is_said_once() {
    let Some(cards) = Cards::new(false, "--policy p") else { return };
    let (code, printed, metrics, _) = cards.learn("--policy p --parts 4 --minibatches 2", ("CARDS", ""));
    let lines: Vec<&str> = printed.lines().collect();
    let [said, hint] = lines[..] else { panic!("{printed}") };
    let cause = "update: gradients pass through host memory, because rank 0 on ";
    assert!(said.starts_with(cause) && said.ends_with(" has no NCCL (libnccl.so.2)"), "{said}");
    assert!(hint.starts_with("hint: ./scripts/fetch-cuda.sh nccl "), "{hint}");
    assert!(code == 0 && metrics[0]["timing"]["transport"] == "mpi", "{code} {metrics:?}");
}
