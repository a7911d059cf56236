//! The simulator from end to end with the sample kernel: results, schedules, and the mistakes it must name.

use device::{Argument, Device, Gemm, Operand, Shape, Sim, kernels};
use half::bf16;

fn sim(seed: u64) -> Sim {
    let mut sim = Sim::new(2, seed).expect("a simulator");
    sim.reserve(1 << 20).expect("a mebibyte");
    sim
}

#[test]
fn a_kernel_computes_what_its_text_says_under_every_schedule() {
    let (rows, width) = (5usize, 300usize);
    let x: Vec<bf16> =
        (0..rows * width).map(|i| bf16::from_f32(1.0 + (i * 7919 % 97) as f32 / 16.0)).collect();
    for seed in 0..4 {
        let mut sim = sim(seed);
        let input = sim.allocate::<bf16>(x.len()).unwrap();
        let output = sim.allocate::<f32>(x.len()).unwrap();
        sim.upload(&x, input.all()).unwrap();
        let arguments: [Argument<'_>; 3] = [(&output).into(), (&input).into(), (width as i32).into()];
        sim.launch(&kernels::NORMALIZE_ROWS, Shape::rows(rows as u32, 96), &arguments).unwrap();
        let mut y = vec![0f32; x.len()];
        sim.download(output.all(), &mut y).unwrap();
        for row in 0..rows {
            let range = row * width..(row + 1) * width;
            let sum: f64 = x[range.clone()].iter().map(|v| v.to_f64()).sum();
            for at in range {
                let wanted = x[at].to_f64() / sum;
                assert!(
                    (f64::from(y[at]) - wanted).abs() < 1e-6 * wanted,
                    "seed {seed} row {row}: {} {wanted}",
                    y[at]
                );
            }
        }
    }
}

#[test]
fn arguments_are_checked_against_the_source() {
    let mut sim = sim(0);
    let floats = sim.allocate::<f32>(8).unwrap();
    let launch = |sim: &mut Sim, arguments: &[Argument<'_>]| {
        sim.launch(&kernels::NORMALIZE_ROWS, Shape::rows(1, 32), arguments).unwrap_err().message
    };
    let message = launch(&mut sim, &[(&floats).into(), (&floats).into(), 8i32.into()]);
    assert_eq!(message, "kernel normalize_rows: x is bf16*, not f32*");
    let message = launch(&mut sim, &[(&floats).into()]);
    assert_eq!(message, "kernel normalize_rows: 1 arguments for 3 parameters");
}

#[test]
fn a_write_past_the_end_is_named() {
    let mut sim = sim(0);
    let input = sim.allocate::<bf16>(64).unwrap();
    sim.upload(&[bf16::ONE; 64], input.all()).unwrap();
    let short = sim.allocate::<f32>(60).unwrap();
    let arguments: [Argument<'_>; 3] = [(&short).into(), (&input).into(), 64i32.into()];
    let failure = sim.launch(&kernels::NORMALIZE_ROWS, Shape::rows(1, 32), &arguments).unwrap_err();
    assert_eq!(failure.message, "kernel normalize_rows: wrote past the end of y (0 bytes after it)");
}

fn turned(operand: Operand<'_>, flip: bool) -> Operand<'_> {
    if flip { operand.transposed() } else { operand }
}

#[test]
fn products_take_every_layout_and_round_once() {
    let (m, n, k) = (7usize, 5usize, 11usize);
    let value = |i: usize| bf16::from_f32(((i * 37 % 23) as f32 - 11.0) / 8.0);
    let (a, b): (Vec<bf16>, Vec<bf16>) =
        ((0..m * k).map(value).collect(), (0..k * n).map(|i| value(i + 5)).collect());
    let transpose = |x: &[bf16], rows: usize, columns: usize| -> Vec<bf16> {
        (0..rows * columns).map(|i| x[i % rows * columns + i / rows]).collect()
    };
    for (flip_a, flip_b, add) in
        [(false, false, false), (true, false, true), (false, true, false), (true, true, true)]
    {
        let mut sim = sim(0);
        let (left, right) = (sim.allocate::<bf16>(m * k).unwrap(), sim.allocate::<bf16>(k * n).unwrap());
        let (wide, rounded) = (sim.allocate::<f32>(m * n).unwrap(), sim.allocate::<bf16>(m * n).unwrap());
        sim.upload(&if flip_a { transpose(&a, m, k) } else { a.clone() }, left.all()).unwrap();
        sim.upload(&if flip_b { transpose(&b, k, n) } else { b.clone() }, right.all()).unwrap();
        sim.upload(&vec![2f32; m * n], wide.all()).unwrap();
        sim.upload(&vec![bf16::from_f32(2.0); m * n], rounded.all()).unwrap();
        let left = turned(Operand::new(&left, if flip_a { m } else { k }), flip_a);
        let right = turned(Operand::new(&right, if flip_b { k } else { n }), flip_b);
        sim.gemm(&Gemm::new(left, right, Operand::new(&wide, n), [m, n, k]).adding(add)).unwrap();
        sim.gemm(&Gemm::new(left, right, Operand::new(&rounded, n), [m, n, k]).adding(add)).unwrap();
        let (mut got, mut short) = (vec![0f32; m * n], vec![bf16::ZERO; m * n]);
        sim.download(wide.all(), &mut got).unwrap();
        sim.download(rounded.all(), &mut short).unwrap();
        for row in 0..m {
            for column in 0..n {
                let sum: f32 = (0..k).map(|d| a[row * k + d].to_f32() * b[d * n + column].to_f32()).sum();
                let wanted = sum + if add { 2.0 } else { 0.0 };
                assert_eq!(got[row * n + column], wanted, "{flip_a} {flip_b} {add}");
                assert_eq!(short[row * n + column], bf16::from_f32(wanted));
            }
        }
    }
}
