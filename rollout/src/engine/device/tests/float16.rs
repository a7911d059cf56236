//! The kernels in float16 give the f32 results rounded once.

use half::{bf16, f16};

use crate::engine::device::config::{Activation, check_range};
use crate::kernels;
use device::{Any, Argument, Buffer, Device, Element, Kernel, Shape};

/// Numbers that all types hold.
fn numbers(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| bf16::from_f32(((i * 7919 + salt * 31) % 211) as f32 / 64.0 - 1.6).to_f32()).collect()
}

fn placed<T: Element>(device: &mut Any, values: &[T]) -> Buffer<T> {
    let buffer = device.allocate(values.len()).expect("memory");
    device.upload(values, buffer.all()).expect("an upload");
    buffer
}

fn rounded<T: Activation>(device: &mut Any, values: &[f32]) -> Buffer<T> {
    placed(device, &values.iter().map(|&value| T::round(value)).collect::<Vec<T>>())
}

/// The results of a kernel for these inputs, followed by `scalars`.
fn run<T: Activation>(
    seed: u64,
    (kernel, shape): (&'static Kernel, Shape),
    lengths: &[usize],
    inputs: impl Fn(&mut Any) -> Vec<Place<T>>,
    scalars: &[Argument<'static>],
) -> Vec<Vec<T>> {
    let mut device = Any::for_tests(seed).expect("a device");
    device.reserve(4 << 20).expect("memory");
    let out: Vec<Buffer<T>> =
        lengths.iter().map(|&length| device.allocate(length).expect("memory")).collect();
    let inputs = inputs(&mut device);
    let mut arguments: Vec<Argument<'_>> = out.iter().map(Into::into).collect();
    arguments.extend(inputs.iter().map(Place::argument));
    arguments.extend_from_slice(scalars);
    device.launch(kernel, shape, &arguments).expect("a launch");
    let read = |buffer: &Buffer<T>| {
        let mut values = vec![T::round(0.0); buffer.len()];
        device.download(buffer.all(), &mut values).expect("a download");
        values
    };
    out.iter().map(read).collect()
}

/// An input.
enum Place<T: Element> {
    Rounded(Buffer<T>),
    Single(Buffer<f32>),
    Whole(Buffer<i32>),
}

impl<T: Element> Place<T> {
    fn argument(&self) -> Argument<'_> {
        match self {
            Place::Rounded(buffer) => buffer.into(),
            Place::Single(buffer) => buffer.into(),
            Place::Whole(buffer) => buffer.into(),
        }
    }
}

fn norm<T: Activation>(rows: usize, width: usize) -> Vec<Vec<T>> {
    let (x, weight) = (numbers(rows * width, 1), numbers(width, 2));
    let inputs =
        |device: &mut Any| vec![Place::Single(placed(device, &x)), Place::Rounded(rounded(device, &weight))];
    let scalars = [Argument::from(width as i32), 1e-6_f32.into()];
    run(1, (T::norm_kernel(), Shape::rows(rows as u32, 64)), &[rows * width], inputs, &scalars)
}

fn glu<T: Activation>(rows: usize, width: usize) -> Vec<Vec<T>> {
    let gate_up = numbers(2 * rows * width, 3);
    let inputs = |device: &mut Any| vec![Place::Rounded(rounded(device, &gate_up))];
    let shape = Shape { grid: [2, rows as u32, 1], block: [32, 1, 1], shared: 0 };
    run(2, (T::glu_kernel(), shape), &[rows * width], inputs, &[Argument::from(width as i32)])
}

/// Norms and rotation. A bias is left out: its sum is rounded by itself.
fn heads<T: Activation>(width: usize) -> Vec<Vec<T>> {
    let (rows, heads, kv_heads, half) = (3, 4, 2, width / 2);
    let parts = heads + 2 * kv_heads;
    let angles =
        |turn: fn(f32) -> f32| -> Vec<f32> { (0..10 * half).map(|at| turn(at as f32 * 0.3)).collect() };
    let inputs = |device: &mut Any| {
        let qkv = [rows * parts * width, parts * width, width, width];
        let mut inputs: Vec<Place<T>> = (4..)
            .zip(qkv)
            .map(|(salt, count)| Place::Rounded(rounded(device, &numbers(count, salt))))
            .collect();
        inputs.extend([f32::cos, f32::sin].map(|turn| Place::Single(placed(device, &angles(turn)))));
        inputs.push(Place::Whole(placed(device, &[0, 5, 9])));
        inputs
    };
    let mut scalars: Vec<Argument<'_>> =
        [rows, heads, kv_heads, width].map(|size| Argument::from(size as i32)).to_vec();
    scalars.extend([Argument::from(1e-6_f32), 6_i32.into()]);
    let shape = Shape::rows((rows * parts).div_ceil(2) as u32, 64);
    let lengths = [heads, kv_heads, kv_heads].map(|count| rows * count * width);
    run(3, (T::heads_kernel(), shape), &lengths, inputs, &scalars)
}

#[test]
fn kernels_in_float16_are_those_in_f32_rounded_once() {
    let check = |what: &str, single: Vec<Vec<f32>>, half: Vec<Vec<f16>>| {
        assert_eq!(single.len(), half.len());
        for (single, half) in single.iter().flatten().zip(half.iter().flatten()) {
            assert_eq!(f16::from_f32(*single).to_bits(), half.to_bits(), "{what}: {single} {half}");
        }
    };
    for width in [264, 33] {
        check("norm", norm::<f32>(3, width), norm::<f16>(3, width));
        check("SwiGLU", glu::<f32>(3, width), glu::<f16>(3, width));
    }
    for width in [64, 128, 20] {
        check("heads", heads::<f32>(width), heads::<f16>(width));
    }
}

/// Products of few rows: of the same numbers the same f32 sums as in bf16.
#[test]
fn products_of_few_rows_in_float16_are_those_in_bf16() {
    let (rows, inputs, outputs) = (3usize, 264usize, 37usize);
    let product = |kernel: &'static Kernel, in_f16: bool| -> Vec<f32> {
        let mut device = Any::for_tests(1).expect("a device");
        device.reserve(4 << 20).expect("memory");
        let (x, w) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
        let out = placed(&mut device, &vec![0f32; rows * outputs]);
        let places = match in_f16 {
            true => [&x, &w].map(|values| Either::F16(rounded(&mut device, values))),
            false => [&x, &w].map(|values| Either::Bf16(rounded(&mut device, values))),
        };
        let mut arguments: Vec<Argument<'_>> = vec![(&out).into()];
        arguments.extend(places.iter().map(Either::argument));
        arguments.push((&out).into());
        arguments.extend([rows, inputs, outputs, 0].map(|size| Argument::from(size as i32)));
        device.launch(kernel, Shape::rows(outputs.div_ceil(4) as u32, 128), &arguments).expect("a launch");
        let mut found = vec![0.0; rows * outputs];
        device.download(out.all(), &mut found).expect("a download");
        found
    };
    let wide = product(&kernels::FEW_ROWS_STREAM, false);
    assert!(wide.iter().any(|&sum| sum != 0.0));
    assert_eq!(wide, product(&kernels::FEW_ROWS_STREAM_F16, true));
}

enum Either {
    Bf16(Buffer<bf16>),
    F16(Buffer<f16>),
}

impl Either {
    fn argument(&self) -> Argument<'_> {
        match self {
            Either::Bf16(buffer) => buffer.into(),
            Either::F16(buffer) => buffer.into(),
        }
    }
}

#[test]
fn a_weight_beyond_float16_is_refused_by_name() {
    let values = [1.0, 65_504.0, -1.2e5];
    let failure = check_range::<f16>("model.norm.weight", &values).expect_err("refused");
    assert!(failure.message.contains("model.norm.weight has -1.20e5, beyond float16"), "{failure}");
    assert!(failure.hint.expect("a hint").contains("--dtype bfloat16"));
    assert!(check_range::<f16>("w", &values[..2]).is_ok() && check_range::<bf16>("w", &values).is_ok());
}
