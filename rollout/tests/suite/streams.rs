//! Every part of a random stream's name matters.

use std::collections::HashSet;

use record::philox::Draws;
use rollout::episode::joint::Node;
use rollout::streams::Streams;

#[test]
fn no_part_of_a_name_is_left_out() {
    let of = |seed, step, task, occurrence, turn, agent, branch| {
        Streams::new(seed, step, task, occurrence).completion(&Node::default(), turn, agent, branch)
    };
    let streams = [
        of(1, 2, "task", 3, 4, "agent", 5),
        of(9, 2, "task", 3, 4, "agent", 5),
        of(1, 9, "task", 3, 4, "agent", 5),
        of(1, 2, "other", 3, 4, "agent", 5),
        of(1, 2, "task", 9, 4, "agent", 5),
        of(1, 2, "task", 3, 9, "agent", 5),
        of(1, 2, "task", 3, 4, "other", 5),
        of(1, 2, "task", 3, 4, "agent", 9),
    ];
    assert_eq!(streams.iter().collect::<HashSet<_>>().len(), streams.len());
    assert_eq!(of(1, 2, "task", 3, 4, "agent", 5), streams[0]);
}

#[test]
fn choosing_a_candidate_does_not_share_random_numbers_with_sampling_it() {
    let streams = Streams::new(1, 2, "task", 3);
    let mut candidate = Draws::new(streams.completion(&Node::default(), 4, "agent", 0));
    assert_ne!(streams.choice(4, "agent").next_u32(), candidate.next_u32());
    let mut others =
        [streams.choice(9, "agent"), streams.choice(4, "other")].map(|mut draws| draws.next_u32());
    others.sort_unstable();
    assert!(!others.contains(&streams.choice(4, "agent").next_u32()) && others[0] != others[1]);
}
