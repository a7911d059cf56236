//! End-to-end tests of a device with a sample kernel and GEMMs in every layout, in the simulator, or on the
//! GPU that `TROUPE_TEST_DEVICE` names.

use device::{Any, Argument, Device, Element, GEMM_WORKSPACE, Gemm, Operand, Shape, kernels};
use half::{bf16, f16};
use std::fmt::Debug;

/// A device for tests, with some memory.
fn opened(seed: u64) -> Any {
    let mut device = Any::for_tests(seed).expect("a device");
    device.reserve(GEMM_WORKSPACE + (16 << 20)).expect("memory");
    device
}

#[test]
fn a_kernel_computes_what_its_text_says_under_every_schedule() {
    normalizes(bf16::from_f32, bf16::to_f64);
    normalizes(f16::from_f32, f16::to_f64);
}

/// Launches a kernel with arguments of this type.
fn normalizes<T: Element>(round: fn(f32) -> T, widen: fn(T) -> f64) {
    let (rows, width) = (5usize, 300usize);
    let x: Vec<T> = (0..rows * width).map(|i| round(1.0 + (i * 7919 % 97) as f32 / 16.0)).collect();
    for seed in 0..4 {
        let mut device = opened(seed);
        let input = device.allocate::<T>(x.len()).unwrap();
        let output = device.allocate::<f32>(x.len()).unwrap();
        device.upload(&x, input.all()).unwrap();
        let arguments: [Argument<'_>; 3] = [(&output).into(), (&input).into(), (width as i32).into()];
        device.launch(&kernels::NORMALIZE_ROWS, Shape::rows(rows as u32, 96), &arguments).unwrap();
        let mut y = vec![0f32; x.len()];
        device.download(output.all(), &mut y).unwrap();
        for row in 0..rows {
            let range = row * width..(row + 1) * width;
            let sum: f64 = x[range.clone()].iter().map(|&v| widen(v)).sum();
            for at in range {
                let wanted = widen(x[at]) / sum;
                assert!(
                    (f64::from(y[at]) - wanted).abs() < 1e-6 * wanted,
                    "seed {seed} row {row}: {} {wanted}",
                    y[at]
                );
            }
        }
    }
}

fn turned(operand: Operand<'_>, flip: bool) -> Operand<'_> {
    if flip { operand.transposed() } else { operand }
}

#[test]
fn products_take_every_layout_and_round_once() {
    products_of(bf16::from_f32, bf16::to_f32);
    products_of(f16::from_f32, f16::to_f32);
}

fn products_of<T: Element + PartialEq + Debug>(round: fn(f32) -> T, widen: fn(T) -> f32) {
    let (m, n, k) = (7usize, 5usize, 11usize);
    let value = |i: usize| round(((i * 37 % 23) as f32 - 11.0) / 8.0);
    let (a, b): (Vec<T>, Vec<T>) =
        ((0..m * k).map(value).collect(), (0..k * n).map(|i| value(i + 5)).collect());
    let transpose = |x: &[T], rows: usize, columns: usize| -> Vec<T> {
        (0..rows * columns).map(|i| x[i % rows * columns + i / rows]).collect()
    };
    for (flip_a, flip_b, add) in
        [(false, false, false), (true, false, true), (false, true, false), (true, true, true)]
    {
        let mut device = opened(0);
        let (left, right) = (device.allocate::<T>(m * k).unwrap(), device.allocate::<T>(k * n).unwrap());
        let (wide, rounded) = (device.allocate::<f32>(m * n).unwrap(), device.allocate::<T>(m * n).unwrap());
        device.upload(&if flip_a { transpose(&a, m, k) } else { a.clone() }, left.all()).unwrap();
        device.upload(&if flip_b { transpose(&b, k, n) } else { b.clone() }, right.all()).unwrap();
        device.upload(&vec![2f32; m * n], wide.all()).unwrap();
        device.upload(&vec![round(2.0); m * n], rounded.all()).unwrap();
        let left = turned(Operand::new(&left, if flip_a { m } else { k }), flip_a);
        let right = turned(Operand::new(&right, if flip_b { k } else { n }), flip_b);
        device.gemm(&Gemm::new(left, right, Operand::new(&wide, n), [m, n, k]).adding(add)).unwrap();
        device.gemm(&Gemm::new(left, right, Operand::new(&rounded, n), [m, n, k]).adding(add)).unwrap();
        let (mut got, mut short) = (vec![0f32; m * n], vec![round(0.0); m * n]);
        device.download(wide.all(), &mut got).unwrap();
        // A separate addend is read in place and not changed.
        let (apart, sum) = (device.allocate::<f32>(m * n).unwrap(), device.allocate::<f32>(m * n).unwrap());
        device.upload(&vec![if add { 2f32 } else { 0.0 }; m * n], apart.all()).unwrap();
        let product = Gemm::new(left, right, Operand::new(&sum, n), [m, n, k]);
        device.gemm(&product.plus(Operand::new(&apart, n))).unwrap();
        let (mut beside, mut kept) = (vec![0f32; m * n], vec![0f32; m * n]);
        device.download(sum.all(), &mut beside).unwrap();
        device.download(apart.all(), &mut kept).unwrap();
        assert_eq!(beside, got, "{flip_a} {flip_b} {add}");
        assert!(kept.iter().all(|&value| value == if add { 2.0 } else { 0.0 }));
        for addend in
            [Operand::new(sum.slice(1..), n), Operand::new(&rounded, n), Operand::new(&apart, n + 1)]
        {
            assert!(device.gemm(&product.plus(addend)).is_err(), "overlap, type or stride");
        }
        device.download(rounded.all(), &mut short).unwrap();
        for row in 0..m {
            for column in 0..n {
                let sum: f32 = (0..k).map(|d| widen(a[row * k + d]) * widen(b[d * n + column])).sum();
                let wanted = sum + if add { 2.0 } else { 0.0 };
                assert_eq!(got[row * n + column], wanted, "{flip_a} {flip_b} {add}");
                assert_eq!(short[row * n + column], round(wanted));
            }
        }
    }
}

#[test]
fn memory_is_copied_cleared_and_limited() {
    let mut device = opened(0);
    let (a, b) = (device.allocate::<i32>(1000).unwrap(), device.allocate::<i32>(1000).unwrap());
    let values: Vec<i32> = (0..1000).collect();
    device.upload(&values, a.all()).unwrap();
    device.copy(a.slice(10..20), b.slice(990..)).unwrap();
    device.clear(b.slice(..990)).unwrap();
    let mut back = vec![7; 1000];
    device.download(b.all(), &mut back).unwrap();
    assert!(back[..990].iter().all(|&value| value == 0));
    assert_eq!(back[990..], values[10..20]);
    assert_eq!(device.upload(&values, a.slice(1..)).unwrap_err().code, record::failure::FAILED);
    let failure = device.allocate::<u8>(1 << 40).unwrap_err();
    assert_eq!(failure.code, record::failure::UNAVAILABLE);
    let memory = device.memory().unwrap();
    assert!(memory.free <= memory.total);
    assert_eq!(device.reserve(1).unwrap_err().message.split(": ").last(), Some("memory is reserved already"));
}

#[test]
fn a_captured_graph_replays_over_the_present_content() {
    let (rows, width, columns) = (6usize, 40usize, 9usize);
    let mut device = opened(0);
    let input = device.allocate::<bf16>(rows * width).unwrap();
    let normal = device.allocate::<f32>(rows * width).unwrap();
    let right = device.allocate::<bf16>(width * columns).unwrap();
    let product = device.allocate::<f32>(rows * columns).unwrap();
    let value = |i: usize| bf16::from_f32(1.0 + (i * 7919 % 89) as f32 / 16.0);
    let right_values: Vec<bf16> = (0..width * columns).map(value).collect();
    device.upload(&right_values, right.all()).unwrap();
    let fill = |device: &mut Any, shift: usize| {
        let values: Vec<bf16> = (0..rows * width).map(|i| value(i + shift)).collect();
        device.upload(&values, input.all()).unwrap();
        device.clear(normal.all()).unwrap();
        device.clear(product.all()).unwrap();
    };
    let work = |device: &mut Any| {
        let arguments: [Argument<'_>; 3] = [(&normal).into(), (&input).into(), (width as i32).into()];
        device.launch(&kernels::NORMALIZE_ROWS, Shape::rows(rows as u32, 96), &arguments)?;
        let operands = (Operand::new(&input, width), Operand::new(&right, columns));
        device.gemm(&Gemm::new(
            operands.0,
            operands.1,
            Operand::new(&product, columns),
            [rows, columns, width],
        ))
    };
    let results = |device: &mut Any| {
        let (mut first, mut second) = (vec![0f32; normal.len()], vec![0f32; product.len()]);
        device.download(normal.all(), &mut first).unwrap();
        device.download(product.all(), &mut second).unwrap();
        [first, second].concat()
    };
    fill(&mut device, 0);
    work(&mut device).unwrap();
    let before = results(&mut device);
    fill(&mut device, 3);
    let graph = device.capture(work).unwrap();
    assert!(results(&mut device).iter().all(|&value| value == 0.0), "it ran while it was captured");
    let Some(graph) = graph else {
        assert!(matches!(device, Any::Sim(_)), "a GPU captures");
        return;
    };
    device.replay(&graph).unwrap();
    let replayed = results(&mut device);
    fill(&mut device, 3);
    work(&mut device).unwrap();
    assert_eq!(replayed, results(&mut device));
    assert_ne!(replayed, before);
}
