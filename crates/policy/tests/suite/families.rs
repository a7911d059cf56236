//! docs/families.md has a row for each family in the code, and its goldens are there.

use std::collections::BTreeSet;

use policy::config::{Config, families};
use troupe_tests::root;

#[test]
fn the_table_of_families_is_that_of_the_code() {
    let text = std::fs::read_to_string(root().join("docs/families.md")).unwrap();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("| `") && !line.starts_with("| `model_type`"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let mut documented: Vec<(&str, &str)> =
        rows.iter().map(|row| (row[0].trim_matches('`'), row[1])).collect();
    let mut known = families();
    documented.sort_unstable();
    known.sort_unstable();
    assert_eq!(documented, known);
    let mut covered = BTreeSet::new();
    for row in &rows {
        let family = row[1];
        let goldens: Vec<&str> = row[5].split('`').skip(1).step_by(2).collect();
        assert!(!goldens.is_empty(), "{family} has no golden");
        for golden in goldens {
            let directory = root().join("tests/golden").join(golden);
            assert!(directory.join("gradient.safetensors").exists(), "{golden} has no gradient");
            assert_eq!(Config::load(&directory).unwrap().family, family, "{golden}");
            covered.insert(golden.to_owned());
        }
    }
    // Further goldens of a row are of its family, too.
    for entry in std::fs::read_dir(root().join("tests/golden")).unwrap() {
        let path = entry.unwrap().path();
        if let Ok(config) = Config::load(&path) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(covered.contains(&name) || config.family == "Qwen3", "{name} is in no row");
        }
    }
}
