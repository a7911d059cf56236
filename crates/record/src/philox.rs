//! Counter-based random numbers: Philox4x32-10 streams keyed by their purpose.
//!
//! A stream is keyed by a seed and a list of parts (`"token"`, step, task, turn, agent, branch …); its value
//! at a position depends on nothing else. Batch size, thread count, order of arrival and restarts cannot
//! change a draw. The generator is Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011),
//! tested against the known answers of the authors' Random123 library.

const MULTIPLIER_0: u32 = 0xD251_1F53;
const MULTIPLIER_1: u32 = 0xCD9E_8D57;
const WEYL_0: u32 = 0x9E37_79B9;
const WEYL_1: u32 = 0xBB67_AE85;

/// Philox4x32 with ten rounds: four random words for a counter and a key.
#[inline]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let product_0 = u64::from(MULTIPLIER_0) * u64::from(c0);
        let product_1 = u64::from(MULTIPLIER_1) * u64::from(c2);
        let next = [
            (product_1 >> 32) as u32 ^ c1 ^ k0,
            product_1 as u32,
            (product_0 >> 32) as u32 ^ c3 ^ k1,
            product_0 as u32,
        ];
        [c0, c1, c2, c3] = next;
        k0 = k0.wrapping_add(WEYL_0);
        k1 = k1.wrapping_add(WEYL_1);
    }
    [c0, c1, c2, c3]
}

/// One part of a stream's name.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// A text, such as the agent or what the stream is for.
    Text(&'a str),
    /// A number, such as the step or the turn.
    Number(u64),
}

/// A named stream of random words, addressed by position. Copying it copies 16 bytes and no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream {
    key: [u32; 2],
    prefix: [u32; 2],
}

impl Stream {
    /// The stream that `seed` and `parts` name.
    ///
    /// Key and counter prefix are the first 16 bytes of BLAKE3 over the seed and the parts, each part written with
    /// its kind and length, so that no two lists of parts read alike.
    pub fn named(seed: u64, parts: &[Part]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        for part in parts {
            match part {
                Part::Text(text) => {
                    hasher.update(b"t");
                    hasher.update(&(text.len() as u64).to_le_bytes());
                    hasher.update(text.as_bytes());
                }
                Part::Number(number) => {
                    hasher.update(b"n");
                    hasher.update(&number.to_le_bytes());
                }
            }
        }
        let hash = hasher.finalize();
        let word = |index: usize| {
            let bytes = &hash.as_bytes()[index * 4..];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        Stream { key: [word(0), word(1)], prefix: [word(2), word(3)] }
    }

    /// The key and the counter prefix, for a twin of this stream on a device: the words at `position` are
    /// `philox4x32_10([position as u32, (position >> 32) as u32, prefix[0], prefix[1]], key)`.
    pub fn key(&self) -> ([u32; 2], [u32; 2]) {
        (self.key, self.prefix)
    }

    /// The four random words at a position.
    #[inline]
    pub fn block(&self, position: u64) -> [u32; 4] {
        philox4x32_10([position as u32, (position >> 32) as u32, self.prefix[0], self.prefix[1]], self.key)
    }

    /// A uniform number in [0, 1) at a position: the first word's upper 24 bits, so that every value is exact in f32.
    #[inline]
    pub fn uniform(&self, position: u64) -> f32 {
        unit(self.block(position)[0])
    }
}

/// The upper 24 bits of a word as a number in [0, 1).
#[inline]
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Draws words one after another from a stream, for shuffles and choices whose positions have no meaning.
#[derive(Debug, Clone)]
pub struct Draws {
    stream: Stream,
    next: u64,
    block: [u32; 4],
}

impl Draws {
    /// Draws from the beginning of `stream`.
    pub fn new(stream: Stream) -> Self {
        Draws { stream, next: 0, block: [0; 4] }
    }

    /// The next word.
    pub fn next_u32(&mut self) -> u32 {
        let lane = (self.next % 4) as usize;
        if lane == 0 {
            self.block = self.stream.block(self.next / 4);
        }
        self.next += 1;
        self.block[lane]
    }

    /// A uniform number in [0, 1) with 24 bits.
    pub fn uniform(&mut self) -> f32 {
        unit(self.next_u32())
    }

    /// A whole number in `0..bound`, each equally likely (Lemire, arXiv 1805.10941); 0 when `bound` is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        if bound == 0 {
            return 0;
        }
        let mut product = u64::from(self.next_u32()) * u64::from(bound);
        if (product as u32) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u32) < threshold {
                product = u64::from(self.next_u32()) * u64::from(bound);
            }
        }
        (product >> 32) as u32
    }

    /// Shuffles in place (Fisher and Yates). Slices longer than 2^32 are not supported and stay as they are beyond.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len().min(u32::MAX as usize)).rev() {
            let other = self.below(last as u32 + 1) as usize;
            items.swap(last, other);
        }
    }

    /// One of the items, each equally likely; `None` if there are no items.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() {
            return None;
        }
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        items.get(self.below(count) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that Random123 ships in `kat_vectors` for philox4x32 with 10 rounds.
    #[test]
    fn random123_known_answers() {
        let vectors = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in vectors {
            assert_eq!(philox4x32_10(counter, key), expected);
        }
    }

    #[test]
    fn names_that_could_read_alike_differ() {
        let names: &[&[Part]] = &[
            &[Part::Text("ab"), Part::Text("c")],
            &[Part::Text("a"), Part::Text("bc")],
            &[Part::Text("abc")],
            &[Part::Number(1), Part::Number(2)],
            &[Part::Number(2), Part::Number(1)],
            &[Part::Number(12)],
            &[Part::Text("12")],
            &[],
        ];
        let streams: std::collections::HashSet<_> =
            names.iter().map(|parts| Stream::named(7, parts)).collect();
        assert_eq!(streams.len(), names.len());
        assert_ne!(Stream::named(7, &[]), Stream::named(8, &[]));
    }

    #[test]
    fn a_device_twin_can_be_made_from_the_key() {
        let stream = Stream::named(3, &[Part::Text("token"), Part::Number(1 << 40)]);
        let (key, prefix) = stream.key();
        let position = (5_u64 << 32) + 9;
        assert_eq!(stream.block(position), philox4x32_10([9, 5, prefix[0], prefix[1]], key));
    }

    #[test]
    fn draws_stay_in_range_and_a_shuffle_keeps_every_item() {
        let mut draws = Draws::new(Stream::named(1, &[Part::Text("test")]));
        let mut seen = [0_u32; 7];
        for _ in 0..7000 {
            seen[draws.below(7) as usize] += 1;
            assert!((0.0..1.0).contains(&draws.uniform()));
        }
        assert!(seen.iter().all(|&count| (850..1150).contains(&count)), "{seen:?}");
        let mut items: Vec<u32> = (0..100).collect();
        draws.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        assert_eq!(draws.choose::<u8>(&[]), None);
        assert_eq!(draws.below(0), 0);
    }

    /// A name gives the same words in every build, so that a later build can repeat a run.
    #[test]
    fn a_named_stream_is_stable() {
        let stream = Stream::named(7, &[Part::Text("token"), Part::Number(12)]);
        assert_eq!(stream.block(0), [2_039_240_154, 1_150_592_039, 1_504_783_231, 2_927_488_606]);
        assert_ne!(stream.block(0), stream.block(1));
    }
}
