//! Matrix products of every instruction set and precision against f64.

use gemm::{
    Accumulate, Isa, Packed, Packing, Precision, Scratch, View, ViewMut, cut, multiply, multiply_chained,
    multiply_packed, round,
};

/// A generator of pseudo-random numbers (Knuth's MMIX constants).
struct Random(u64);

impl Random {
    /// Values in [-1, 1).
    fn values(&mut self, length: usize) -> Vec<f32> {
        let mut value = || {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..length).map(|_| value()).collect()
    }
}

/// All kernels that this CPU supports.
fn kernels() -> impl Iterator<Item = (Isa, Precision)> {
    let precisions = [Precision::Float32, Precision::BFloat16];
    let all = Isa::available();
    all.into_iter().flat_map(move |instructions| precisions.map(|precision| (instructions, precision)))
}

/// A matrix stored by rows or by columns, with padding at the end of each.
struct Matrix {
    values: Vec<f32>,
    rows: usize,
    columns: usize,
    by_rows: bool,
}

impl Matrix {
    const ROOM: usize = 3;

    fn new(random: &mut Random, rows: usize, columns: usize, by_rows: bool) -> Matrix {
        Matrix { values: random.values((rows + Self::ROOM) * (columns + Self::ROOM)), rows, columns, by_rows }
    }

    fn view(&self) -> View<'_> {
        self.view_from(0)
    }

    /// The columns from `first` on.
    fn view_from(&self, first: usize) -> View<'_> {
        let (across, down) = (self.columns + Self::ROOM, self.rows + Self::ROOM);
        match self.by_rows {
            true => View::new(&self.values[first..], across),
            false => View::new(&self.values[first * down..], down).transposed(),
        }
    }

    /// All of it as a packed right operand.
    fn packed(&self, isa: Isa, precision: Precision) -> Packed {
        let mut packing = Packing::new(isa, precision, [self.rows, self.columns]);
        while let Some(columns) = packing.wanted() {
            packing.push(self.view_from(columns.start));
        }
        packing.finish()
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        match self.by_rows {
            true => self.values[row * (self.columns + Self::ROOM) + column],
            false => self.values[column * (self.rows + Self::ROOM) + row],
        }
    }
}

/// `a · b` with rounded operands and f64 sums, and for each element the sum of its products' magnitudes.
fn product(precision: Precision, a: &Matrix, b: &Matrix) -> Vec<(f64, f64)> {
    let rounded = |value: f32| match precision {
        Precision::Float32 => f64::from(value),
        Precision::BFloat16 => f64::from(round(value)),
    };
    let mut all = Vec::new();
    for row in 0..a.rows {
        for column in 0..b.columns {
            let products =
                (0..a.columns).map(|place| rounded(a.at(row, place)) * rounded(b.at(place, column)));
            all.push(products.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs())));
        }
    }
    all
}

#[test]
fn every_layout_and_odd_size_is_right() {
    let mut random = Random(1);
    let mut worst = 0.0f64;
    for [rows, columns, inner] in [
        [1, 1, 1],
        [1, 17, 3],
        [13, 31, 5],
        [14, 32, 16],
        [15, 33, 17],
        [29, 48, 40],
        [64, 7, 100],
        [3, 65, 385],
        [340, 50, 33],
        [350, 31, 390],
        [20, 2060, 9],
        [40, 64, 800],
        [9, 40, 1601],
        [5, 5, 0],
    ] {
        let stride = columns + 2;
        let base = random.values(rows * stride);
        for layout in 0..4 {
            let a = Matrix::new(&mut random, rows, inner, layout & 1 == 0);
            let b = Matrix::new(&mut random, inner, columns, layout & 2 == 0);
            for (instructions, precision) in kernels() {
                let truth = product(precision, &a, &b);
                let packed = b.packed(instructions, precision);
                let mut scratch = Scratch::new(instructions);
                for mode in 0..3 {
                    let (mut c, onto) = match mode {
                        0 => (vec![f32::NAN; rows * stride], Accumulate::Zero),
                        1 => (base.clone(), Accumulate::Result),
                        _ => (vec![f32::NAN; rows * stride], Accumulate::Other(&base)),
                    };
                    let mut again = c.clone();
                    let extent = [rows, columns, inner];
                    let (a, b) = (a.view(), b.view());
                    multiply(&mut scratch, precision, extent, a, b, onto, ViewMut::new(&mut c, stride));
                    multiply_packed(&mut scratch, rows, a, &packed, onto, ViewMut::new(&mut again, stride));
                    let place = format!("{instructions:?} {precision:?} {extent:?} {layout} {mode}");
                    for (index, &found) in c.iter().enumerate() {
                        let (row, column) = (index / stride, index % stride);
                        assert_eq!(found.to_bits(), again[index].to_bits(), "{place}: packed before");
                        if column >= columns {
                            // Padding between the rows is unchanged.
                            assert!(if mode == 1 { found == base[index] } else { found.is_nan() }, "{place}");
                            continue;
                        }
                        let start = if mode == 0 { 0.0 } else { f64::from(base[index]) };
                        let (sum, size) = truth[row * columns + column];
                        let error = (f64::from(found) - start - sum).abs() / (start.abs() + size).max(1e-30);
                        worst = worst.max(error);
                        assert!(error < 3e-7, "{place}: {found} for {} ({error:.1e})", start + sum);
                    }
                }
            }
        }
    }
    println!("largest error {worst:.1e} of the sum of magnitudes");
}

/// bf16 results do not depend on the processor: every instruction set adds the same
/// products in the same order.
#[test]
fn every_instruction_set_gives_the_same_bits() {
    let mut random = Random(3);
    for [rows, columns, inner] in
        [[1, 1, 1], [3, 5, 2], [29, 48, 41], [15, 33, 767], [7, 70, 769], [40, 64, 2000]]
    {
        for layout in 0..4 {
            let mut a = Matrix::new(&mut random, rows, inner, layout & 1 == 0);
            let b = Matrix::new(&mut random, inner, columns, layout & 2 == 0);
            // A subnormal number, and a tie.
            (a.values[0], a.values[1]) = (1e-40, f32::from_bits(0x3f80_8000));
            for precision in [Precision::Float32, Precision::BFloat16] {
                let product = |isa: Isa| {
                    let mut c = vec![0.0; rows * columns];
                    let (extent, c_rows) = ([rows, columns, inner], ViewMut::new(&mut c, columns));
                    multiply(
                        &mut Scratch::new(isa),
                        precision,
                        extent,
                        a.view(),
                        b.view(),
                        Accumulate::Zero,
                        c_rows,
                    );
                    c.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                let all = Isa::available();
                // Portable code has no fused multiply-add, and rounds an f32 product before adding it.
                let exact = |isa: &&Isa| precision == Precision::BFloat16 || **isa != Isa::Portable;
                for isa in all.iter().filter(exact) {
                    assert!(
                        product(*isa) == product(all[0]),
                        "{isa:?} {precision:?} {rows} {columns} {inner} {layout}"
                    );
                }
            }
        }
    }
}

/// Golden checksums, taken with AVX2 and equal to AVX-512 and NEON, so that other
/// processors are compared too.
#[test]
fn processors_that_fuse_give_these_bits() {
    const SINGLE: u64 = 0xeb9a_5a51_0fbe_5113;
    const HALF: u64 = 0xbe36_e9c8_a7bd_4de8;
    let [rows, columns, inner] = [23, 75, 1601];
    let (a, b) = {
        let mut random = Random(17);
        (random.values(rows * inner), random.values(inner * columns))
    };
    for isa in Isa::available() {
        let sum = |precision| {
            let mut c = vec![0.0; rows * columns];
            let (a, b, c_rows) =
                (View::new(&a, inner), View::new(&b, columns), ViewMut::new(&mut c, columns));
            multiply(
                &mut Scratch::new(isa),
                precision,
                [rows, columns, inner],
                a,
                b,
                Accumulate::Zero,
                c_rows,
            );
            // FNV-1a, 32 bits at a time.
            c.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, value| {
                (sum ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
            })
        };
        // Portable code rounds an f32 product before adding it.
        let [single, half] = [sum(Precision::Float32), sum(Precision::BFloat16)];
        let fuses = isa != Isa::Portable;
        assert_eq!((single == SINGLE, half), (fuses, HALF), "{isa}: {single:#018x} {half:#018x}");
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbors() {
    let mut random = Random(2);
    let (columns, inner) = (70, 501);
    let (a, b) = (random.values(400 * inner), random.values(inner * columns));
    for (instructions, precision) in kernels() {
        let mut scratch = Scratch::new(instructions);
        let mut product = |first: usize, rows: usize| {
            let mut c = vec![0.0; rows * columns];
            let (a, b) = (View::new(&a[first * inner..], inner), View::new(&b, columns));
            let extent = [rows, columns, inner];
            multiply(&mut scratch, precision, extent, a, b, Accumulate::Zero, ViewMut::new(&mut c, columns));
            c
        };
        let all = product(0, 400);
        for (first, rows) in [(0, 1), (17, 1), (39, 50), (200, 13), (399, 1)] {
            assert!(
                product(first, rows) == all[first * columns..(first + rows) * columns],
                "{instructions:?} {precision:?}"
            );
        }
    }
}

#[test]
fn infinite_and_nan_values_stay_so() {
    for (instructions, precision) in kernels() {
        let mut scratch = Scratch::new(instructions);
        for (bad, by_rows) in [f32::NAN, f32::INFINITY, f32::from_bits(0x7fff_ffff)]
            .into_iter()
            .flat_map(|bad| [(bad, true), (bad, false)])
        {
            let mut a = Matrix { values: vec![1.0; 400], rows: 7, columns: 17, by_rows };
            let b = Matrix { values: vec![1.0; 800], rows: 17, columns: 33, by_rows };
            let place = if by_rows { 3 * 20 + 16 } else { 16 * 10 + 3 };
            a.values[place] = bad;
            let mut c = vec![0.0; 7 * 33];
            let (a, b, c_rows) = (a.view(), b.view(), ViewMut::new(&mut c, 33));
            multiply(&mut scratch, precision, [7, 33, 17], a, b, Accumulate::Zero, c_rows);
            for (index, &value) in c.iter().enumerate() {
                let right = if index / 33 == 3 { !value.is_finite() } else { value == 17.0 };
                assert!(right, "{instructions:?} {precision:?} {bad} at {index}: {value}");
            }
        }
    }
}

#[test]
fn rounding_is_to_the_nearest_and_ties_to_even() {
    for (bits, rounded) in [
        (0x3f80_0000, 0x3f80_0000),
        (0x3f80_7fff, 0x3f80_0000),
        (0x3f80_8000, 0x3f80_0000),
        (0x3f80_8001, 0x3f81_0000),
        (0x3f81_8000, 0x3f82_0000),
        (0xbf81_8000, 0xbf82_0000),
        (0x7f7f_ffff, 0x7f80_0000),
        (0x0000_0000, 0x0000_0000),
        (0x8000_0000, 0x8000_0000),
    ] {
        assert_eq!(round(f32::from_bits(bits)).to_bits(), rounded, "{bits:#x}");
    }
    assert!(round(f32::NAN).is_nan() && round(f32::from_bits(0xffff_ffff)).is_nan());
}

/// Any number of threads gives the same bits, and no value outside the result is written.
#[test]
fn a_product_that_is_cut_has_the_same_bits() {
    let mut random = Random(11);
    let precisions = [Precision::Float32, Precision::BFloat16];
    for (precision, [rows, columns, inner]) in precisions
        .into_iter()
        .flat_map(|p| [[1, 1, 1], [37, 200, 801], [130, 31, 500], [3, 700, 64], [5, 9, 0]].map(|e| (p, e)))
    {
        let stride = columns + 3;
        let (a, b) =
            (Matrix::new(&mut random, rows, inner, false), Matrix::new(&mut random, inner, columns, true));
        let (before, other) = (random.values(rows * stride), random.values(rows * stride));
        let mut scratch = Scratch::default();
        for onto in [Accumulate::Zero, Accumulate::Result, Accumulate::Other(&other)] {
            let mut whole = before.clone();
            let c = ViewMut::new(&mut whole, stride);
            multiply(&mut scratch, precision, [rows, columns, inner], a.view(), b.view(), onto, c);
            for parts in [1, 2, 3, 4, 7, 16, 50] {
                let mut found = before.clone();
                let c = ViewMut::new(&mut found, stride);
                let products = cut([rows, columns, inner], a.view(), b.view(), onto, c, parts);
                assert!((1..=parts).contains(&products.len()), "{parts} parts of {rows} by {columns}");
                products.into_iter().for_each(|product| product.run(&mut scratch, precision));
                assert!(whole.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits()), "{parts} parts");
            }
        }
        // Summed from zero, then added.
        let mut sums = vec![0.0; rows * stride];
        let c = ViewMut::new(&mut sums, stride);
        multiply(&mut scratch, precision, [rows, columns, inner], a.view(), b.view(), Accumulate::Zero, c);
        for parts in [1, 3, 16] {
            let mut found = before.clone();
            let c = ViewMut::new(&mut found, stride);
            let products = cut([rows, columns, inner], a.view(), b.view(), Accumulate::Result, c, parts);
            products.into_iter().for_each(|product| product.add(&mut scratch, precision));
            for (index, (found, before)) in found.iter().zip(&before).enumerate() {
                assert_eq!(
                    found.to_bits(),
                    (before + sums[index]).to_bits(),
                    "{parts} parts, element {index}"
                );
            }
        }
    }
}

/// Storing bf16 values in half the memory must not change results, for any shape of the last panel and block.
#[test]
fn values_stored_in_halves_give_the_same_bits() {
    let mut random = Random(17);
    for isa in Isa::available() {
        let mut scratch = Scratch::new(isa);
        for precision in [Precision::Float32, Precision::BFloat16] {
            for [rows, columns, inner] in [
                [1, 1, 1],
                [3, 16, 17],
                [14, 17, 31],
                [15, 32, 384],
                [29, 33, 385],
                [2, 47, 769],
                [30, 2080, 40],
            ] {
                let a = Matrix::new(&mut random, rows, inner, true);
                for by_rows in [true, false] {
                    let mut b = Matrix::new(&mut random, inner, columns, by_rows);
                    b.values.iter_mut().for_each(|value| *value = round(*value));
                    let mut halves = Packing::of_halves(isa, precision, [inner, columns]);
                    while let Some(columns) = halves.wanted() {
                        halves.push(b.view_from(columns.start));
                    }
                    let mut product = |packed: &Packed| {
                        let mut c = vec![0.0; rows * columns];
                        let result = ViewMut::new(&mut c, columns);
                        multiply_packed(&mut scratch, rows, a.view(), packed, Accumulate::Zero, result);
                        c.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
                    };
                    let (stored, whole) = (product(&halves.finish()), product(&b.packed(isa, precision)));
                    assert!(stored == whole, "{isa} {precision} {rows} {columns} {inner} {by_rows}");
                }
            }
        }
    }
}

#[test]
fn a_chain_goes_through_all_terms_in_order() {
    let mut random = Random(11);
    for isa in Isa::available() {
        let mut scratch = Scratch::new(isa);
        // Fused, if the instruction set is.
        let add =
            |a: f32, b: f32, sum: f32| if isa == Isa::Portable { sum + a * b } else { a.mul_add(b, sum) };
        for [rows, columns, inner] in [[1, 1, 1], [5, 16, 385], [15, 33, 1000], [29, 64, 2000]] {
            let mut a = random.values(rows * inner);
            let b = random.values(inner * columns);
            // Some zero terms.
            a.iter_mut().enumerate().filter(|(index, _)| index % 3 == 1).for_each(|(_, value)| *value = 0.0);
            let mut c = vec![f32::NAN; rows * columns];
            let (left, right) = (View::new(&a, inner), View::new(&b, columns));
            let target = ViewMut::new(&mut c, columns);
            multiply_chained(&mut scratch, [rows, columns, inner], left, right, target);
            for row in 0..rows {
                for column in 0..columns {
                    let terms = (0..inner).map(|place| (a[row * inner + place], b[place * columns + column]));
                    let without = terms.clone().filter(|&(left, _)| left != 0.0);
                    let of = |terms: &mut dyn Iterator<Item = (f32, f32)>| {
                        terms.fold(0.0, |sum, (left, right)| add(left, right, sum))
                    };
                    let expected = of(&mut without.into_iter());
                    assert_eq!(expected, of(&mut terms.into_iter()));
                    assert_eq!(c[row * columns + column], expected, "{isa} {rows} {columns} {inner}");
                }
            }
        }
    }
}
