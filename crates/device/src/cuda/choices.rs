//! The measured algorithms of matrix products on this card: a file for each card, driver and cuBLASLt. Other measured choices are kept
//! in the same way, without a version of cuBLASLt, as the first word of a line.
//!
//! cuBLASLt guesses its fastest algorithm, and is often wrong by a few percent. Each shape is measured once
//! and the result stored, so that later runs compute the same bits. Similar shapes share a choice; if it
//! cannot compute one of them, another choice is added. The file has one line per choice. If two processes
//! measure a shape at once, the later one adopts the earlier one's choice. The file may be deleted.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::library;

/// Path of the file, or `off` to use cuBLASLt's first proposal and measure nothing.
pub(super) const VARIABLE: &str = "TROUPE_PRODUCT_CHOICES";

/// cuBLASLt's opaque encoding of an algorithm, valid for the same version of cuBLASLt.
pub(super) type Algorithm = [u64; 8];

/// The stored choices for a GPU.
#[derive(Debug, Default)]
pub(super) struct Choices {
    /// `None` if there is no place for it; choices then last as long as the process.
    file: Option<PathBuf>,
    known: HashMap<String, Vec<Algorithm>>,
    /// True if new shapes are measured.
    pub measures: bool,
}

impl Choices {
    /// Loads the choices for a GPU, its driver (in CUDA's numbering) and this cuBLASLt.
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

    /// The choices that depend on a GPU and its driver alone.
    pub fn without_library(card: &str) -> Choices {
        Choices::of(card, super::installation::driver_version().unwrap_or_default(), 0)
    }

    fn read(file: Option<PathBuf>) -> Choices {
        let known = file.as_deref().map(parse).unwrap_or_default();
        Choices { file, known, measures: true }
    }

    /// The choices for a shape; the first one that works is used.
    pub fn of_shape(&self, shape: &str) -> &[Algorithm] {
        self.known.get(shape).map_or(&[], Vec::as_slice)
    }

    /// Stores the choice for a shape, after any that other processes have stored meanwhile.
    pub fn keep(&mut self, shape: &str, algorithm: Algorithm) {
        if let Some(file) = &self.file
            && append(file, &line(shape, &algorithm)).is_ok()
        {
            self.known.extend(parse(file));
        }
        // Without a writable file, later runs only have to measure again.
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

/// Appends a line with a single write, so that two processes cannot interleave.
fn append(file: &Path, line: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

/// Parses the choices by shape, in the order of the lines. Skips malformed lines.
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

/// The index of the fastest algorithm. Prefers the first, unless another is faster by more than the noise.
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
