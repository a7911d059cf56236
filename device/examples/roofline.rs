//! What this device can do at most, measured: bytes a second of a copy and operations a second of a bf16 product.
//!
//! ```text
//! cargo run --release -p device --example roofline -- cuda
//! ```
//!
//! Prints one JSON object. Figures of other programs are shares of these, taken on the same card in the same run.

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::time::Instant;

use device::{Any, Device, DeviceKind, GEMM_WORKSPACE, Gemm, Operand};
use half::bf16;
use record::failure::{Failure, Result};

fn main() -> std::process::ExitCode {
    record::stage::run("roofline", || {
        println!("{}", measure(&std::env::args().nth(1).unwrap_or_else(|| "cuda".to_owned()))?);
        Ok(())
    })
}

fn measure(name: &str) -> Result<String> {
    let kind = DeviceKind::parse("DEVICE", name)?;
    if kind == DeviceKind::Cpu {
        return Err(Failure::usage("DEVICE cpu: name cuda, cuda:N or sim"));
    }
    // The simulator only shows that the program works.
    let (width, words, repeats) =
        if kind == DeviceKind::Sim { (128, 1 << 16, 2) } else { (8192, 1 << 29, 20) };
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

/// The median time of `work`, after one that does not count.
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
