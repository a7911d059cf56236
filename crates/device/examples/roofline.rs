//! Measures this device's limits: bytes per second of a copy, and operations per second
//! of a bf16 matrix product.
//!
//! ```text
//! cargo run --release -p device --example roofline -- cuda
//! ```
//!
//! Prints one JSON object. Other benchmarks report a share of these limits, measured on the
//! same GPU in the same run.
//!
//! With `products HIDDEN INNER QUERIES KEYS VOCABULARY ROWS` it prints one object for each matrix
//! product of a decoder's training over ROWS tokens, and with `decode` before these numbers, for each
//! product of a decoding step. Each is timed with cuBLASLt's first proposed algorithm and with the
//! fastest of the first eight.

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::time::Instant;

use device::{Any, Device, DeviceKind, GEMM_WORKSPACE, Gemm, Operand};
use half::bf16;
use record::failure::{Failure, Result};

fn main() -> std::process::ExitCode {
    record::stage::run("roofline", || {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let kind = DeviceKind::parse("DEVICE", arguments.first().map_or("cuda", String::as_str))?;
        if kind == DeviceKind::Cpu {
            return Err(Failure::usage("DEVICE cpu: name cuda, cuda:N or sim"));
        }
        match arguments.get(1).map(String::as_str) {
            None => println!("{}", measure(kind)?),
            Some(what @ ("products" | "decode")) => {
                products(kind, &shapes(what == "products", &arguments[2..])?)?
            }
            Some(other) => return Err(Failure::usage(format!("{other}: neither products nor decode"))),
        }
        Ok(())
    })
}

/// A matrix product as the programs compute it.
struct Product {
    name: String,
    /// Rows and columns of the result, and the inner dimension.
    extent: [usize; 3],
    /// Transposed in memory: the left operand, the right operand.
    transposed: (bool, bool),
    /// True if it is added to the result's previous contents, in f32.
    adds: bool,
}

/// The products of a decoder, for training or for decoding.
fn shapes(training: bool, sizes: &[String]) -> Result<Vec<Product>> {
    let sizes: Vec<usize> = sizes.iter().filter_map(|size| size.parse().ok()).collect();
    let &[hidden, inner, queries, keys, vocabulary, rows] = &sizes[..] else {
        return Err(Failure::usage("sizes are HIDDEN INNER QUERIES KEYS VOCABULARY ROWS"));
    };
    // `update` computes the logits of at most this many rows at once.
    let head_rows = if training { rows.min(1152) } else { rows };
    let mut weights = vec![
        ("query", queries, hidden, rows),
        ("key or value", keys, hidden, rows),
        ("output", hidden, queries, rows),
        ("gate or up", inner, hidden, rows),
        ("down", hidden, inner, rows),
        ("head", vocabulary, hidden, head_rows),
    ];
    if queries == hidden {
        weights.retain(|weight| weight.0 != "output");
        weights[0].0 = "query or output";
    }
    let mut products = Vec::new();
    for (name, outputs, inputs, rows) in weights {
        let mut add = |what: &str, extent, transposed, adds| {
            products.push(Product { name: format!("{name}{what}"), extent, transposed, adds });
        };
        add("", [rows, outputs, inputs], (false, true), false);
        if training {
            add(", gradient of inputs", [rows, inputs, outputs], (false, false), false);
            add(", gradient of weights", [outputs, inputs, rows], (true, false), true);
        }
    }
    Ok(products)
}

/// Times each product with the first algorithm and with the fastest of eight.
fn products(kind: DeviceKind, products: &[Product]) -> Result<()> {
    let repeats = if matches!(kind, DeviceKind::Sim(_)) { 1 } else { 10 };
    let extents = || products.iter().map(|product| product.extent);
    let most = |count: fn([usize; 3]) -> usize| extents().map(count).max().unwrap_or(0);
    let [left, right, out] = [most(|[m, _, k]| m * k), most(|[_, n, k]| k * n), most(|[m, n, _]| m * n)];
    let mut device = Any::open(kind, 2)?;
    device.reserve(GEMM_WORKSPACE + 2 * (left + right) as u64 + 6 * out as u64 + (1 << 20))?;
    let (a, b) = (device.allocate::<bf16>(left)?, device.allocate::<bf16>(right)?);
    let (half, single) = (device.allocate::<bf16>(out)?, device.allocate::<f32>(out)?);
    let values: Vec<bf16> =
        (0..1_usize << 22).map(|i| bf16::from_f32((i * 7919 % 1009) as f32 / 504.5 - 1.0)).collect();
    for buffer in [&a, &b] {
        for first in (0..buffer.len()).step_by(values.len()) {
            let count = values.len().min(buffer.len() - first);
            device.upload(&values[..count], buffer.slice(first..first + count))?;
        }
    }
    device.clear(single.all())?;
    for Product { name, extent, transposed, adds } in products {
        let [m, n, k] = *extent;
        let operand = |values, transposed: bool, [rows, columns]: [usize; 2]| match transposed {
            true => Operand::new(values, rows).transposed(),
            false => Operand::new(values, columns),
        };
        let (left, right) = (operand(&a, transposed.0, [m, k]), operand(&b, transposed.1, [k, n]));
        let out = match name.as_str() {
            "head" => Operand::new(&single, n),
            _ if *adds => Operand::new(&single, n),
            _ => Operand::new(&half, n),
        };
        let product = Gemm::new(left, right, out, *extent).adding(*adds);
        let mut times = Vec::new();
        for choice in 0..8 {
            let product = Gemm { choice: Some(choice), ..product };
            match median(&mut device, repeats, |device| device.gemm(&product)) {
                Ok(seconds) => times.push(seconds),
                Err(failure) if choice == 0 => return Err(failure),
                // cuBLASLt proposes no more.
                Err(_) => break,
            }
        }
        let best = (0..times.len()).min_by(|&one, &other| times[one].total_cmp(&times[other])).unwrap_or(0);
        let speed = |seconds: f64| 2.0 * m as f64 * n as f64 * k as f64 / seconds;
        println!(
            "{{\"product\":{name:?},\"rows\":{m},\"columns\":{n},\"depth\":{k},\"first\":{:.4e},\"best\":{:.4e},\
             \"choice\":{best},\"choices\":{},\"seconds\":{:.4e}}}",
            speed(times[0]),
            speed(times[best]),
            times.len(),
            times[0]
        );
    }
    Ok(())
}

fn measure(kind: DeviceKind) -> Result<String> {
    // In the simulator, only check that the program works.
    let (width, words, repeats) =
        if matches!(kind, DeviceKind::Sim(_)) { (128, 1 << 16, 2) } else { (8192, 1 << 29, 20) };
    let mut device = Any::open(kind, 2)?;
    device.reserve(GEMM_WORKSPACE + 8 * words as u64 + 6 * (width * width) as u64 + (1 << 20))?;
    let copied = {
        let (from, to) = (device.allocate::<u32>(words)?, device.allocate::<u32>(words)?);
        device.clear(from.all())?;
        let seconds = median(&mut device, repeats, |device| device.copy(from.all(), to.all()))?;
        8.0 * words as f64 / seconds
    };
    let operations = {
        let matrix: Vec<bf16> =
            (0..width * width).map(|i| bf16::from_f32((i * 7919 % 1009) as f32 / 504.5 - 1.0)).collect();
        let (a, b) = (device.allocate::<bf16>(matrix.len())?, device.allocate::<bf16>(matrix.len())?);
        let out = device.allocate::<bf16>(matrix.len())?;
        device.upload(&matrix, a.all())?;
        device.upload(&matrix, b.all())?;
        let (left, right) = (Operand::new(&a, width), Operand::new(&b, width).transposed());
        let gemm = Gemm::new(left, right, Operand::new(&out, width), [width, width, width]);
        let seconds = median(&mut device, repeats, |device| device.gemm(&gemm))?;
        2.0 * (width as f64).powi(3) / seconds
    };
    Ok(format!(
        "{{\"device\":{:?},\"bytes_per_second\":{copied:.4e},\"operations_per_second\":{operations:.4e}}}",
        device.describe()
    ))
}

/// The median time of `work`, after one untimed run.
fn median(device: &mut Any, repeats: usize, mut work: impl FnMut(&mut Any) -> Result<()>) -> Result<f64> {
    work(device)?;
    device.synchronize()?;
    let mut seconds = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let started = Instant::now();
        work(device)?;
        device.synchronize()?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[repeats / 2])
}
