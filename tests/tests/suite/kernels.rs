//! Every CUDA kernel of the workspace compiles for every supported architecture, within its budget.
//!
//! NVRTC needs no GPU. `golden/kernels.txt` holds the registers per thread and the spilled bytes of each kernel and
//! architecture; more of either fails, because it is slower. Static shared memory must leave room for the dynamic part; their
//! sum is checked at every simulated launch. After a deliberate change:
//! `TROUPE_WRITE_KERNEL_TABLE=1 cargo test -p troupe-tests --test suite kernels`, and read the difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use compile_kernels::Signature;
use device::Source;
use device::cuda::{self, Usage};
use troupe_tests::skip;

const ARCHITECTURES: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"];
/// The compiler version of the table.
const VERSION: (i32, i32) = (13, 0);
const HEADER: &str =
    "# kernel, then registers/spilled bytes by architecture, 0/0 where it is not for that one: ";

/// Static shared memory that a kernel may have, in bytes.
const FIXED_SHARED: u32 = 16 * 1024;

type Table = BTreeMap<String, [Usage; ARCHITECTURES.len()]>;

#[test]
fn every_kernel_compiles_within_its_budget() {
    let fetched = Command::new(troupe_tests::root().join("scripts/fetch-cuda.sh"))
        .arg("nvrtc")
        .stdout(Stdio::null())
        .status();
    if !fetched.expect("scripts/fetch-cuda.sh runs").success()
        && let Err(failure) = cuda::compiler_version()
    {
        skip!("no kernel was compiled for a GPU: pip could not fetch NVRTC, and {}", failure.message);
    }
    let version = cuda::compiler_version().expect("NVRTC opens");
    let found = compile_all();
    let path = troupe_tests::root().join("tests/golden/kernels.txt");
    if std::env::var_os("TROUPE_WRITE_KERNEL_TABLE").is_some() {
        std::fs::write(&path, print(&found)).expect("the table is written");
    }
    if version != VERSION {
        skip!("the kernels' budgets are for NVRTC {VERSION:?}, this is {version:?}");
    }
    let table = parse(&std::fs::read_to_string(&path).expect("the table"));
    let mut wrong = String::new();
    for (kernel, usage) in &found {
        let Some(budget) = table.get(kernel) else {
            let _ = writeln!(wrong, "{kernel}: not in the table");
            continue;
        };
        for ((architecture, used), allowed) in ARCHITECTURES.iter().zip(usage).zip(budget) {
            // Attention takes the whole of a block's shared memory at its widest, all of it dynamic.
            let most = if kernel.starts_with("update/attention") { 0 } else { FIXED_SHARED };
            if used.shared > most {
                let _ = writeln!(
                    wrong,
                    "{kernel} on {architecture}: {} bytes of fixed shared memory",
                    used.shared
                );
            }
            if used.registers > allowed.registers || used.spilled > allowed.spilled {
                let _ = writeln!(
                    wrong,
                    "{kernel} on {architecture}: {} registers and {} bytes spilled, of {} and {}",
                    used.registers, used.spilled, allowed.registers, allowed.spilled
                );
            }
        }
    }
    for kernel in table.keys().filter(|kernel| !found.contains_key(*kernel)) {
        let _ = writeln!(wrong, "{kernel}: in the table but nowhere else");
    }
    assert!(
        wrong.is_empty(),
        "\n{wrong}after a deliberate change: TROUPE_WRITE_KERNEL_TABLE=1, and read the difference"
    );
}

/// A loop over the copies of a tile is unrolled: the machine code holds each of them, and no more than an address between two.
#[test]
fn copies_of_attention_tiles_are_unrolled() {
    if cuda::compiler_version().is_err() {
        return;
    }
    for (width, [forward, queries], owned) in
        [(16, [64, 64], 64), (32, [64, 64], 64), (64, [64, 64], 64), (128, [64, 32], 64), (256, [32, 16], 32)]
    {
        let image = attention(&format!("update/kernels/attention_{width}"));
        // Rows that a kernel copies outside of its loop and in it, and threads.
        for (kernel, rows, threads) in [
            (format!("attention_{width}"), 64 + 4 * forward, 128),
            (format!("attention_queries_{width}"), 128 + 4 * queries, 128),
            (format!("attention_keys_{width}"), 4 * owned, 4 * owned),
        ] {
            let found = copies(&image, &kernel);
            let wanted = rows * (width / 8) / threads;
            println!("{kernel}: {found} copies of 16 bytes");
            assert!(found >= wanted.max(1), "{kernel}: {found} copies of {wanted}");
        }
    }
    for (folder, file, kernel, rows) in [
        ("update", "attention_128_sm90a", "attention_128_sm90a", 5 * 128),
        ("update", "attention_backward_128_sm90a", "attention_queries_128_sm90a", 2 * 128 + 4 * 64),
        ("update", "attention_backward_128_sm90a", "attention_keys_128_sm90a", 2 * 128 + 4 * 64),
        ("rollout", "prefill_attention_128_sm90a", "prefill_attention_128_sm90a", 5 * 128),
        // 128 threads copy 64 queries and four tiles of 64 keys.
        ("rollout", "prefill_attention_128", "prefill_attention_128", 2 * 5 * 64),
        ("rollout", "prefill_attention_64", "prefill_attention_64", 5 * 64),
    ] {
        let found = copies(&attention(&format!("{folder}/kernels/{file}")), kernel);
        assert!(found >= rows * 16 / 256, "{kernel}: {found} copies");
    }
}

/// Machine code of one of attention's sources.
fn attention(file: &str) -> Vec<u8> {
    let path = troupe_tests::root().join(format!("{file}.cu"));
    let expanded = compile_kernels::expand(&path).expect("the source is read");
    let source = Source { name: "attention", text: expanded.text.leak(), architecture: None };
    cuda::compile(&source, "sm_90a").expect("compiled").image
}

/// Instructions of a kernel that copy from global to shared memory (LDGSTS): sixteen bytes each, the opcode in the lowest twelve
/// bits.
fn copies(image: &[u8], kernel: &str) -> usize {
    let number = |at: usize, bytes: usize| -> usize {
        image[at..at + bytes].iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
    };
    let (table, count, names) = (number(40, 8), number(60, 2), number(62, 2));
    let field = |section: usize, at: usize, bytes: usize| number(table + 64 * section + at, bytes);
    let wanted = format!(".text.{kernel}\0");
    let text = (0..count)
        .find(|&section| image[field(names, 24, 8) + field(section, 0, 4)..].starts_with(wanted.as_bytes()));
    let text = text.unwrap_or_else(|| panic!("no code of {kernel}"));
    let start = field(text, 24, 8);
    image[start..start + field(text, 32, 8)]
        .chunks_exact(16)
        .filter(|code| u16::from_le_bytes([code[0], code[1]]) & 0xfff == 0xfae)
        .count()
}

/// Every source of the workspace for every architecture.
fn compile_all() -> Table {
    let work: Vec<(PathBuf, usize)> = sources()
        .into_iter()
        .flat_map(|path| (0..ARCHITECTURES.len()).map(move |architecture| (path.clone(), architecture)))
        .filter(|(path, at)| only(path).is_none_or(|only| only == ARCHITECTURES[*at]))
        .collect();
    assert!(!work.is_empty(), "no kernels at all");
    let (next, found) = (Mutex::new(work.into_iter()), Mutex::new(Table::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((path, architecture)) = next.lock().expect("the list").next() else { break };
                    let usage = compile(&path, ARCHITECTURES[architecture]);
                    let mut found = found.lock().expect("the table");
                    for (kernel, usage) in usage {
                        found.entry(kernel).or_default()[architecture] = usage;
                    }
                }
            });
        }
    });
    found.into_inner().expect("the table")
}

/// The `kernels/*.cu` of every crate.
fn sources() -> Vec<PathBuf> {
    let list = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder)
            .map(|all| all.filter_map(|entry| Some(entry.ok()?.path())).collect())
            .unwrap_or_default()
    };
    let root = troupe_tests::root();
    let mut found: Vec<PathBuf> = [list(&root), list(&root.join("crates"))]
        .iter()
        .flatten()
        .flat_map(|crate_folder| list(&crate_folder.join("kernels")))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    found.sort();
    found
}

/// The one architecture that a source is for.
fn only(path: &Path) -> Option<&'static str> {
    compile_kernels::architecture(&path.file_stem()?.to_string_lossy())
}

fn compile(path: &Path, architecture: &str) -> BTreeMap<String, Usage> {
    let expanded = compile_kernels::expand(path).expect("the source is read");
    let declared = compile_kernels::signatures(&expanded.text).expect("the source keeps the conventions");
    let folder =
        path.ancestors().nth(2).and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    let name = format!("{folder}/{}", path.file_name().unwrap_or_default().to_string_lossy());
    let others: Vec<Signature> = declared.iter().filter_map(Signature::in_f16).collect();
    let mut found = compile_text(&name, expanded.text.clone(), architecture, &declared, "");
    if !others.is_empty() {
        let text = compile_kernels::in_f16(&expanded.text, &declared);
        let in_f16 = compile_text(&name, text, architecture, &declared, "_f16");
        found.extend(in_f16.into_iter().filter(|(name, _)| others.iter().any(|other| other.name == *name)));
    }
    found.into_iter().map(|(kernel, usage)| (format!("{folder}/{kernel}"), usage)).collect()
}

/// Compiles a source, with its kernels as declared but for the end of their names.
fn compile_text(
    name: &str,
    text: String,
    architecture: &str,
    declared: &[Signature],
    ending: &str,
) -> BTreeMap<String, Usage> {
    let source = Source { name: name.to_owned().leak(), text: text.leak(), architecture: None };
    let compiled = cuda::compile(&source, architecture).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(compiled.image.starts_with(b"\x7fELF"), "{}: no machine code", source.name);
    let usage = compiled.usage;
    assert_eq!(
        usage.keys().cloned().collect::<Vec<_>>(),
        {
            let mut names: Vec<String> =
                declared.iter().map(|kernel| format!("{}{ending}", kernel.name)).collect();
            names.sort();
            names
        },
        "{}: the assembler saw other kernels than were declared",
        source.name
    );
    usage
}

fn print(table: &Table) -> String {
    let mut text = format!("{HEADER}{}\n", ARCHITECTURES.join(" "));
    for (kernel, usage) in table {
        let _ = write!(text, "{kernel}");
        for usage in usage {
            let _ = write!(text, " {}/{}", usage.registers, usage.spilled);
        }
        text.push('\n');
    }
    text
}

fn parse(text: &str) -> Table {
    let number = |text: &str| text.parse::<u32>().expect("a number");
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let mut words = line.split(' ');
            let kernel = words.next().unwrap_or_default().to_owned();
            let usage = std::array::from_fn(|_| {
                let (registers, spilled) =
                    words.next().and_then(|word| word.split_once('/')).expect("registers/spilled");
                Usage { registers: number(registers), spilled: number(spilled), shared: 0 }
            });
            (kernel, usage)
        })
        .collect()
}
