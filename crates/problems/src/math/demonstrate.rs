//! Imperfect experts for word problems, to warm up a tiny policy.
//!
//! Each answer comes from one demonstrator, drawn by the mix: `opt` solves the story, `short` forgets its
//! last step, `slip` is one off from some step on, `random` answers anything. In a later turn a reasoner or
//! judge adopts what one of the others wrote with probability `follow`; a tool always writes a new chain.
//! Most forget: a majority habit survives greedy decoding and can be corrected by reinforcement, rare
//! mistakes average out.
//!
//! In prose they write what a brief prompt asks for. A pretrained model rarely needs that: it is for one that finds no answer.

use record::philox::Draws;

use super::message::Role;
use super::spec::Encoding;
use super::story::{Chain, DIGIT};
use super::{compact, full};

/// The kinds and their default shares.
pub const KINDS: &[(&str, f64)] = &[("opt", 0.35), ("short", 0.45), ("slip", 0.15), ("random", 0.05)];

/// What a demonstrator of `kind` answers.
pub fn answer(kind: &str, role: Role, encoding: Encoding, chain: &Chain, draws: &mut Draws) -> String {
    let mut chain = chain.clone();
    match kind {
        // For a story of one step this is the starting number.
        "short" => {
            chain.steps.pop();
        }
        "random" => chain = Chain::draw(1 + draws.below(3), 20, DIGIT, draws),
        "slip" if role == Role::Tool => {
            let at = draws.below(chain.steps.len().max(1) as u32) as usize;
            if let Some((_, operand)) = chain.steps.get_mut(at) {
                *operand += 1;
            }
        }
        _ => {}
    }
    match (encoding, role) {
        (Encoding::Compact, Role::Tool) => return chain.write(),
        (Encoding::Full, Role::Tool) => return full::write_python(&chain.program()),
        _ => {}
    }
    let mut totals = chain.totals().unwrap_or_default();
    if totals.is_empty() {
        totals.push(chain.start);
    }
    if kind == "slip" {
        let at = draws.below(totals.len() as u32) as usize;
        let up = draws.below(2) == 1;
        for total in &mut totals[at..] {
            *total = if up { *total + 1 } else { total.saturating_sub(1) };
        }
    }
    match encoding {
        Encoding::Full => full::write_calculation(&chain, &totals),
        Encoding::Compact => compact::write_totals(&totals),
    }
}
