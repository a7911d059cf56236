//! Lists of moves that `envs check` tries in every situation of an environment in which somebody walks.

use super::Move;

/// Every list of one to three moves, and longer ones that go on after `shortest`, turn round and overshoot. `most` is how
/// many moves a turn may have.
pub fn lists(shortest: &[Move], most: usize) -> Vec<Vec<Move>> {
    let mut last: Vec<Vec<Move>> = vec![Vec::new()];
    let mut found = Vec::new();
    for _ in 0..most.min(3) {
        last = last
            .iter()
            .flat_map(|list| Move::ALL.map(|step| list.iter().copied().chain([step]).collect()))
            .collect();
        found.extend(last.iter().cloned());
    }
    for step in Move::ALL {
        let mut longer = shortest.to_vec();
        longer.resize(most, step);
        found.push(longer.clone());
        found.push(vec![step; most]);
        longer.resize(most + 1, step);
        found.push(longer);
    }
    found
}
