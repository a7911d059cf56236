//! Matrix products of every instruction set against f64.

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "numerics/small.rs"]
mod small;

use small::{Random, relative};
use update::gemm::{Instructions, Onto, Scratch, View, multiply_with};

#[test]
fn every_layout_and_odd_size_is_right() {
    let mut random = Random(1);
    let mut scratch = Scratch::default();
    for instructions in Instructions::available() {
        let mut worst = 0.0f64;
        for (rows, columns, inner) in [
            (1, 1, 1),
            (1, 17, 3),
            (13, 31, 5),
            (14, 32, 16),
            (15, 33, 17),
            (29, 48, 40),
            (64, 7, 100),
            (3, 65, 385),
            (340, 50, 33),
            (20, 2060, 9),
            (40, 64, 800),
            (5, 5, 0),
        ] {
            // Strides wider than the rows, so that a wrong stride shows.
            let (a, b) =
                (random.values((rows + 3) * (inner + 5)), random.values((columns + 3) * (inner + 5)));
            let stride = columns + 2;
            let base = random.values(rows * stride);
            for layout in 0..4 {
                let left = if layout & 1 == 0 {
                    View::new(&a, inner + 5)
                } else {
                    View::new(&a, rows + 3).transposed()
                };
                let right = if layout & 2 == 0 {
                    View::new(&b, columns + 3)
                } else {
                    View::new(&b, inner + 5).transposed()
                };
                let at = |row: usize, place: usize| {
                    f64::from(if layout & 1 == 0 {
                        a[row * (inner + 5) + place]
                    } else {
                        a[place * (rows + 3) + row]
                    })
                };
                let bt = |place: usize, column: usize| {
                    f64::from(if layout & 2 == 0 {
                        b[place * (columns + 3) + column]
                    } else {
                        b[column * (inner + 5) + place]
                    })
                };
                for mode in 0..3 {
                    let mut c = if mode == 1 { base.clone() } else { vec![f32::NAN; rows * stride] };
                    let onto = match mode {
                        0 => Onto::Zero,
                        1 => Onto::Result,
                        _ => Onto::Other(&base),
                    };
                    multiply_with(
                        instructions,
                        &mut scratch,
                        [rows, columns, inner],
                        left,
                        right,
                        onto,
                        &mut c,
                        stride,
                    );
                    let mut found = Vec::new();
                    let mut truth = Vec::new();
                    for row in 0..rows {
                        for column in 0..columns {
                            let sum: f64 = (0..inner).map(|place| at(row, place) * bt(place, column)).sum();
                            let start = if mode == 0 { 0.0 } else { f64::from(base[row * stride + column]) };
                            truth.push(start + sum);
                            found.push(c[row * stride + column]);
                        }
                        // What lies between the rows is left alone.
                        for column in columns..stride {
                            let place = row * stride + column;
                            assert!(if mode == 1 { c[place] == base[place] } else { c[place].is_nan() });
                        }
                    }
                    let error = relative(&found, &truth);
                    worst = worst.max(error);
                    assert!(
                        error < 1e-6,
                        "{instructions:?} {rows}x{columns}x{inner} {layout} {mode}: {error:.1e}"
                    );
                }
            }
        }
        println!("{instructions:?}: largest relative error {worst:.1e}");
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let mut random = Random(2);
    let mut scratch = Scratch::default();
    let (columns, inner) = (70, 500);
    let (a, b) = (random.values(400 * inner), random.values(inner * columns));
    for instructions in Instructions::available() {
        let mut product = |first: usize, rows: usize| {
            let mut c = vec![0.0; rows * columns];
            let (a, b) = (View::new(&a[first * inner..], inner), View::new(&b, columns));
            multiply_with(
                instructions,
                &mut scratch,
                [rows, columns, inner],
                a,
                b,
                Onto::Zero,
                &mut c,
                columns,
            );
            c
        };
        let all = product(0, 400);
        for (first, rows) in [(0, 1), (17, 1), (39, 50), (200, 13), (399, 1)] {
            assert!(
                product(first, rows) == all[first * columns..(first + rows) * columns],
                "{instructions:?}"
            );
        }
    }
}
