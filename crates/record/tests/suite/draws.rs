//! Draws from a named stream are the same in every build. Tasks are made of these draws, so a change would
//! change the test split.

use record::philox::{Draws, Part, Stream};

#[test]
fn choices_and_shuffles_are_stable() {
    let mut draws = Draws::new(Stream::named(7, &[Part::Text("token"), Part::Number(12)]));
    let bounds = [3, 10, 1 << 30, 3_000_000_000, 0];
    assert_eq!(bounds.map(|bound| draws.below(bound)), [1, 2, 376_195_807, 2_842_308_038, 0]);
    let mut items = [0, 1, 2, 3, 4, 5, 6, 7];
    draws.shuffle(&mut items);
    assert_eq!(items, [6, 3, 7, 0, 2, 4, 5, 1]);
}
