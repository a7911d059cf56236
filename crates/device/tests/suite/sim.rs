//! Mistakes that the simulator must detect.

use device::{Argument, Device, Shape, Sim, kernels};
use half::bf16;

fn sim(seed: u64) -> Sim {
    let mut sim = Sim::new(2, seed).expect("a simulator");
    sim.reserve(1 << 20).expect("a mebibyte");
    sim
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
