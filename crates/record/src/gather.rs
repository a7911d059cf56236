//! Gathers lines into groups and releases everything in the order in which it arrived.
//!
//! A group takes the place of its first member; later lines wait until the group is complete. Contiguous groups stream
//! through one at a time; interleaved ones come out in the same order but need more memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

/// The output in place of a line.
#[derive(Debug)]
pub enum Gathered<T> {
    /// A line that belongs to no group.
    Line(String),
    Group(T),
}

impl<T> Gathered<T> {
    pub fn group(&self) -> Option<&T> {
        match self {
            Gathered::Line(_) => None,
            Gathered::Group(group) => Some(group),
        }
    }
}

/// Gathers groups of type `T` by a key.
#[derive(Debug)]
pub struct Gather<T> {
    /// Each with whether it may leave.
    waiting: VecDeque<(Gathered<T>, bool)>,
    /// How many entries have left `waiting` for good.
    released: usize,
    open: HashMap<String, usize>,
    closed: HashSet<u128, BuildHasherDefault<Folded>>,
}

impl<T> Default for Gather<T> {
    fn default() -> Self {
        Gather { waiting: VecDeque::new(), released: 0, open: HashMap::new(), closed: HashSet::default() }
    }
}

impl<T> Gather<T> {
    /// Takes a line that belongs to no group.
    pub fn line(&mut self, text: String) {
        self.waiting.push_back((Gathered::Line(text), true));
    }

    /// The open group `key`, created with `begin` if it is new; `None` if the group was already closed.
    pub fn group(&mut self, key: &str, begin: impl FnOnce() -> T) -> Option<&mut T> {
        let position = match self.open.get(key) {
            Some(&position) => position,
            None if self.closed.contains(&fingerprint(key)) => return None,
            None => {
                let position = self.released + self.waiting.len();
                self.open.insert(key.to_owned(), position);
                self.waiting.push_back((Gathered::Group(begin()), false));
                position
            }
        };
        match self.waiting.get_mut(position - self.released) {
            Some((Gathered::Group(group), _)) => Some(group),
            _ => None,
        }
    }

    /// Closes the group `key`: no further member can join it.
    pub fn close(&mut self, key: &str) {
        self.closed.insert(fingerprint(key));
        let Some(position) = self.open.remove(key) else { return };
        if let Some((_, ready)) = self.waiting.get_mut(position - self.released) {
            *ready = true;
        }
    }

    /// The next item to write, or `None` while the next group is open.
    pub fn release(&mut self) -> Option<Gathered<T>> {
        let (entry, _) = self.waiting.pop_front_if(|(_, ready)| *ready)?;
        self.released += 1;
        Some(entry)
    }

    /// Everything that is left at the end of the stream, open groups included.
    pub fn rest(self) -> impl Iterator<Item = Gathered<T>> {
        self.waiting.into_iter().map(|(entry, _)| entry)
    }
}

pub(crate) type ByFingerprint<T> = HashMap<u128, T, BuildHasherDefault<Folded>>;

/// Hashes a value that already is a hash, by folding its words into one.
#[derive(Debug, Default)]
pub(crate) struct Folded(u64);

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            self.0 ^= u64::from_ne_bytes(padded);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A 128-bit hash of a name, so that a long stream's names need not be kept.
pub(crate) fn fingerprint(name: impl Hash) -> u128 {
    let half = |number: u64| {
        let mut hasher = DefaultHasher::new();
        (number, &name).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(entry: Gathered<Vec<u32>>) -> String {
        match entry {
            Gathered::Line(text) => text,
            Gathered::Group(group) => format!("{group:?}"),
        }
    }

    fn ready(gather: &mut Gather<Vec<u32>>) -> Vec<String> {
        std::iter::from_fn(|| gather.release()).map(show).collect()
    }

    #[test]
    fn a_group_stands_where_its_first_member_stood() {
        let mut gather = Gather::<Vec<u32>>::default();
        gather.line("first".to_owned());
        assert_eq!(ready(&mut gather), ["first"]);
        gather.group("a", Vec::new).unwrap().push(1);
        gather.line("between".to_owned());
        gather.group("b", Vec::new).unwrap().push(2);
        gather.close("b");
        assert_eq!(ready(&mut gather), Vec::<String>::new());
        gather.group("a", Vec::new).unwrap().push(3);
        gather.close("a");
        assert_eq!(ready(&mut gather), ["[1, 3]", "between", "[2]"]);
        assert!(gather.waiting.is_empty());
        assert!(gather.group("a", Vec::new).is_none(), "a closed group opened again");
        gather.group("c", Vec::new).unwrap().push(4);
        gather.line("last".to_owned());
        assert_eq!(gather.rest().map(show).collect::<Vec<_>>(), ["[4]", "last"]);
    }

    #[test]
    fn names_that_could_read_alike_have_other_fingerprints() {
        assert_ne!(fingerprint(("ab", "c")), fingerprint(("a", "bc")));
        assert_eq!(fingerprint("a"), fingerprint("a"));
    }
}
