//! The prefix tree of a micro-batch.
//!
//! Sequences that begin with the same tokens share the nodes of that beginning, so a prompt that K candidates
//! answer is computed once. Nodes lie depth-first; each node `j` carries the end of its subtree, and key `j`
//! is visible to query `i` exactly if `j <= i < ends[j]` (the column-wise form of FlashMask, arXiv
//! 2410.01359). The gradient equals the gradient of separate sequences; only the work is less (Tree Training,
//! arXiv 2511.00413).
//!
//! Left out: the choice of samples for a micro-batch (the caller's business) and anything about losses.

/// One sample's tokens: prompt and completion.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Token ids of the prompt.
    pub prompt: &'a [u32],
    /// Token ids of the completion, the stop token included.
    pub completion: &'a [u32],
}

/// One completion token to be scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossRow {
    /// The node whose hidden state predicts the token.
    pub node: u32,
    /// The token predicted.
    pub target: u32,
    /// Index of the packed sequence that the token belongs to.
    pub sequence: u32,
    /// The token's index in that sequence's completion.
    pub index: u32,
}

/// Packed tokens, depth-first. A tree may have several roots (then it is a forest).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Token id of each node.
    pub ids: Vec<u32>,
    /// Depth of each node: its position in every sequence that runs through it.
    pub positions: Vec<u32>,
    /// One past the last node of each node's subtree.
    pub ends: Vec<u32>,
    /// Every completion token of every sequence, ordered by sequence, then index. Several rows may name one
    /// node: a branching point, or completions that are equal.
    pub rows: Vec<LossRow>,
}

impl Tree {
    /// Number of nodes: the tokens that are computed.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns true if there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// Token `depth` of a sequence, counted over prompt and completion.
fn token(sequence: &Sequence, depth: usize) -> u32 {
    let prompt = sequence.prompt.len();
    if depth < prompt { sequence.prompt[depth] } else { sequence.completion[depth - prompt] }
}

/// Nodes that a sequence needs: every token but the last, which predicts nothing; zero without a completion.
fn nodes(sequence: &Sequence) -> usize {
    if sequence.completion.is_empty() { 0 } else { sequence.prompt.len() + sequence.completion.len() - 1 }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// How many leading nodes two sequences have in common.
fn shared_nodes(a: &Sequence, b: &Sequence) -> usize {
    let limit = nodes(a).min(nodes(b));
    let depth = if a.prompt.len() == b.prompt.len() {
        let prompt = common_prefix(a.prompt, b.prompt);
        let whole = prompt == a.prompt.len();
        prompt + if whole { common_prefix(a.completion, b.completion) } else { 0 }
    } else {
        (0..limit).take_while(|&depth| token(a, depth) == token(b, depth)).count()
    };
    depth.min(limit)
}

/// Packs sequences into one tree.
///
/// With `share` every common prefix becomes one path, whatever sample it comes from and wherever prompt and
/// completion part; the layout then depends on the sequences only as a set. Without it each sequence is a
/// separate root, in the order given.
///
/// The first token of a completion whose prompt is empty has no node that predicts it and gets no row.
pub fn pack(sequences: &[Sequence], share: bool) -> Tree {
    let mut order: Vec<u32> = (0..sequences.len() as u32).collect();
    if share {
        order.sort_by(|&a, &b| {
            let (a, b) = (&sequences[a as usize], &sequences[b as usize]);
            let depth = shared_nodes(a, b);
            let next = |sequence: &Sequence| (depth < nodes(sequence)).then(|| token(sequence, depth));
            next(a).cmp(&next(b))
        });
    }
    let total = sequences.iter().map(|sequence| sequence.completion.len()).sum();
    let mut tree = Tree { rows: Vec::with_capacity(total), ..Tree::default() };
    // path[depth] is the node at that depth of the sequence placed last.
    let mut path: Vec<u32> = Vec::new();
    let mut previous: Option<&Sequence> = None;
    for &index in &order {
        let sequence = &sequences[index as usize];
        let length = nodes(sequence);
        if length == 0 {
            continue;
        }
        let depth = if share { previous.map_or(0, |previous| shared_nodes(previous, sequence)) } else { 0 };
        close(&mut tree, &mut path, depth);
        for depth in depth..length {
            path.push(tree.ids.len() as u32);
            tree.ids.push(token(sequence, depth));
            tree.positions.push(depth as u32);
            tree.ends.push(0);
        }
        for (place, &target) in sequence.completion.iter().enumerate() {
            let Some(depth) = (sequence.prompt.len() + place).checked_sub(1) else { continue };
            tree.rows.push(LossRow { node: path[depth], target, sequence: index, index: place as u32 });
        }
        previous = Some(sequence);
    }
    close(&mut tree, &mut path, 0);
    tree.rows.sort_unstable_by_key(|row| (row.sequence, row.index));
    tree
}

/// Ends the subtrees below `depth` at the node that comes next.
fn close(tree: &mut Tree, path: &mut Vec<u32>, depth: usize) {
    for &node in &path[depth.min(path.len())..] {
        tree.ends[node as usize] = tree.ids.len() as u32;
    }
    path.truncate(depth);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence<'a>(prompt: &'a [u32], completion: &'a [u32]) -> Sequence<'a> {
        Sequence { prompt, completion }
    }

    /// The tokens from the root to `node`, by the mask alone.
    fn visible(tree: &Tree, node: usize) -> Vec<u32> {
        (0..=node).filter(|&key| node < tree.ends[key] as usize).map(|key| tree.ids[key]).collect()
    }

    fn check(sequences: &[Sequence], tree: &Tree) {
        for row in &tree.rows {
            let sequence = &sequences[row.sequence as usize];
            let expected: Vec<u32> = sequence.prompt.iter().chain(sequence.completion).copied().collect();
            let depth = sequence.prompt.len() + row.index as usize;
            assert_eq!(visible(tree, row.node as usize), expected[..depth], "{row:?}");
            assert_eq!(row.target, expected[depth]);
            assert_eq!(tree.positions[row.node as usize] as usize, depth - 1);
        }
        let rows: usize = sequences.iter().map(|s| s.completion.len()).sum();
        let lost = sequences.iter().filter(|s| s.prompt.is_empty() && !s.completion.is_empty()).count();
        assert_eq!(tree.rows.len(), rows - lost);
        assert!(tree.rows.is_sorted_by_key(|row| (row.sequence, row.index)));
    }

    #[test]
    fn siblings_share_their_prompt_and_their_common_beginning() {
        let prompt = [7, 8, 9];
        let sequences = [
            sequence(&prompt, &[1, 2, 3]),
            sequence(&prompt, &[1, 5]),
            sequence(&prompt, &[1, 2, 3]),
            sequence(&prompt, &[4, 4, 4]),
        ];
        let tree = pack(&sequences, true);
        check(&sequences, &tree);
        assert_eq!(tree.ids, [7, 8, 9, 1, 2, 4, 4]);
        assert_eq!(tree.ends, [7, 7, 7, 5, 5, 7, 7]);
        let separate = pack(&sequences, false);
        check(&sequences, &separate);
        assert_eq!(separate.len(), 5 + 4 + 5 + 5);
    }

    #[test]
    fn odd_sequences_are_packed_exactly() {
        let sequences = [
            sequence(&[], &[1, 2]),
            sequence(&[1], &[2, 3]),
            sequence(&[1, 2], &[]),
            sequence(&[1, 2, 3, 4], &[5]),
            sequence(&[1, 2, 3], &[4]),
            sequence(&[9], &[9]),
            sequence(&[], &[]),
        ];
        for share in [true, false] {
            check(&sequences, &pack(&sequences, share));
        }
        assert_eq!(pack(&sequences, true).ids, [1, 2, 3, 4, 9]);
        assert!(pack(&[], true).is_empty() && !pack(&sequences, true).is_empty());
    }

    #[test]
    fn the_layout_depends_on_the_set_of_sequences_only() {
        let mut state = 1u32;
        let mut next = |below: u32| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 16) % below
        };
        let tokens: Vec<Vec<u32>> = (0..200).map(|_| (0..12).map(|_| next(2)).collect()).collect();
        let sequences: Vec<Sequence> = tokens
            .iter()
            .enumerate()
            .map(|(index, tokens)| {
                sequence(&tokens[..index % 9 + 1], &tokens[index % 9 + 1..9 + index % 3 + 1])
            })
            .collect();
        let tree = pack(&sequences, true);
        check(&sequences, &tree);
        let mut distinct: Vec<Vec<u32>> = (0..tree.len()).map(|node| visible(&tree, node)).collect();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), tree.len(), "two nodes stand for one prefix");
        let reversed: Vec<Sequence> = sequences.iter().rev().copied().collect();
        assert_eq!(pack(&reversed, true).ids, tree.ids);
    }
}
