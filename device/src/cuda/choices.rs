//! The measured algorithms of matrix products on this card: a file for each card, driver and cuBLASLt.
//!
//! cuBLASLt guesses its fastest algorithm and is often wrong by a few percent. Each shape is measured once,
//! and the result is kept, so that later runs compute the same bits. Similar shapes share a choice; a shape
//! that the first choice cannot compute adds another. The file has a line for each choice. If two processes
//! measure a shape at once, the later one takes the earlier one's choice. The file may be deleted.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::library;

/// Names the file, or is `off`: then cuBLASLt's first proposal is taken, and nothing is measured.
pub(super) const VARIABLE: &str = "TROUPE_PRODUCT_CHOICES";

/// cuBLASLt's opaque form of an algorithm, which the same version of cuBLASLt can store and load.
pub(super) type Algorithm = [u64; 8];

/// The choices of a card.
#[derive(Debug, Default)]
pub(super) struct Choices {
    /// `None` without a place for it; choices then last as long as the process.
    file: Option<PathBuf>,
    known: HashMap<String, Vec<Algorithm>>,
    /// True if shapes are measured.
    pub measures: bool,
}

impl Choices {
    /// The known choices for a card with this driver (in CUDA's numbering) and this cuBLASLt.
    pub fn of(card: &str, driver: i32, cublaslt: usize) -> Choices {
        let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let name =
            format!("{}-{driver}-{cublaslt}", card.replace(|one: char| !one.is_ascii_alphanumeric(), "-"));
        let usual = || Some(library::cache()?.join("products").join(name));
        match named {
            Some(value) if value == "off" => Choices::default(),
            Some(value) => Choices::read(Some(value.into())),
            None => Choices::read(usual()),
        }
    }

    fn read(file: Option<PathBuf>) -> Choices {
        let known = file.as_deref().map(parse).unwrap_or_default();
        Choices { file, known, measures: true }
    }

    /// The measured choices for a shape, the valid one first.
    pub fn of_shape(&self, shape: &str) -> &[Algorithm] {
        self.known.get(shape).map_or(&[], Vec::as_slice)
    }

    /// Keeps the measured choice for a shape, after the choices that others have kept meanwhile.
    pub fn keep(&mut self, shape: &str, algorithm: Algorithm) {
        if let Some(file) = &self.file
            && append(file, &line(shape, &algorithm)).is_ok()
        {
            self.known.extend(parse(file));
        }
        // A file that cannot be written only costs time.
        let known = self.known.entry(shape.to_owned()).or_default();
        if !known.contains(&algorithm) {
            known.push(algorithm);
        }
    }
}

fn line(shape: &str, algorithm: &Algorithm) -> String {
    let words: Vec<String> = algorithm.iter().map(|word| format!("{word:016x}")).collect();
    format!("{shape} {}\n", words.join(" "))
}

/// Writes a line by a single write, so that lines of two processes do not mix.
fn append(file: &Path, line: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

/// The choices of each shape in the order of the lines; lines that are none are passed over.
fn parse(file: &Path) -> HashMap<String, Vec<Algorithm>> {
    let mut found: HashMap<String, Vec<Algorithm>> = HashMap::new();
    for line in std::fs::read_to_string(file).unwrap_or_default().lines() {
        let mut words = line.split(' ');
        let shape = words.next().unwrap_or_default();
        let words: Option<Vec<u64>> = words.map(|word| u64::from_str_radix(word, 16).ok()).collect();
        if let Some(Ok(algorithm)) = words.map(Algorithm::try_from) {
            found.entry(shape.to_owned()).or_default().push(algorithm);
        }
    }
    found
}

/// The fastest of some algorithms by their times: the first, unless another is faster by more than times vary.
pub(super) fn fastest(seconds: &[f32]) -> usize {
    const MARGIN: f32 = 0.98;
    let least = (0..seconds.len()).min_by(|&one, &other| seconds[one].total_cmp(&seconds[other]));
    least.filter(|&least| seconds[least] < MARGIN * seconds[0]).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_kept_and_the_first_one_counts() {
        let folder = std::env::temp_dir().join(format!("troupe-choices-{}", std::process::id()));
        let file = folder.join("card");
        let (first, second) = ([1, 2, 3, 4, 5, 6, 7, u64::MAX], [9; 8]);
        let (mut one, mut other) = (Choices::read(Some(file.clone())), Choices::read(Some(file.clone())));
        assert!(one.of_shape("a").is_empty());
        one.keep("a", first);
        assert_eq!(one.of_shape("a"), [first]);
        other.keep("b", second);
        other.keep("a", second);
        assert_eq!(other.of_shape("a"), [first, second], "another process was first");
        std::fs::write(&file, format!("{}garbage\na 1 2\n", std::fs::read_to_string(&file).unwrap()))
            .unwrap();
        let read = Choices::read(Some(file));
        assert_eq!((read.of_shape("a"), read.of_shape("b")), (&[first, second][..], &[second][..]));
        assert!(read.of_shape("garbage").is_empty());
        std::fs::remove_dir_all(folder).unwrap();
        let mut nowhere = Choices::read(None);
        nowhere.keep("a", first);
        assert_eq!(nowhere.of_shape("a"), [first]);
    }

    #[test]
    fn another_algorithm_must_be_faster_by_more_than_times_vary() {
        for (seconds, wanted) in [
            (&[1.0][..], 0),
            (&[1.0, 0.99], 0),
            (&[1.0, 0.97, 0.9], 2),
            (&[0.5, 0.6], 0),
            (&[1.0, f32::NAN], 0),
        ] {
            assert_eq!(fastest(seconds), wanted, "{seconds:?}");
        }
    }
}
