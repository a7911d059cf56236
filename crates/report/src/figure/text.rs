//! How wide a text is, and its bytes in Windows-1252, the encoding of the font in a PDF.
//!
//! `Roboto-Latin.ttf` is Roboto 2.137 Regular (Copyright 2011 Google Inc., Apache License 2.0) without the
//! characters that Windows-1252 does not have. An SVG names the font without embedding it; the viewer chooses
//! one.

/// The font, for a PDF.
pub const FONT: &[u8] = include_bytes!("Roboto-Latin.ttf");

/// The advance of each character of Windows-1252 from the space on, in thousandths of the size.
#[rustfmt::skip]
pub const WIDTHS: [u16; 224] = [
    248, 257, 320, 616, 562, 732, 622, 174, 342, 348, 431, 567, 196, 276, 263, 412, 562, 562, 562,
    562, 562, 562, 562, 562, 562, 562, 242, 211, 508, 549, 522, 472, 898, 652, 623, 651, 656, 568,
    553, 681, 713, 272, 552, 627, 538, 873, 713, 688, 631, 688, 616, 593, 597, 648, 636, 887, 627,
    601, 599, 265, 410, 265, 418, 451, 309, 544, 561, 523, 564, 530, 347, 561, 551, 243, 239, 507,
    243, 876, 552, 570, 561, 568, 338, 516, 327, 551, 484, 751, 496, 473, 496, 338, 244, 338, 680,
    0, 562, 0, 199, 340, 344, 669, 551, 570, 471, 958, 593, 300, 954, 0, 599, 0, 0, 200, 200, 354,
    357, 337, 656, 781, 472, 625, 516, 300, 908, 0, 496, 601, 248, 244, 547, 581, 713, 525, 240,
    613, 418, 786, 447, 469, 554, 276, 786, 458, 374, 534, 367, 367, 313, 566, 489, 261, 248, 367,
    455, 469, 732, 776, 778, 473, 652, 652, 652, 652, 652, 652, 935, 651, 568, 568, 568, 568, 272,
    272, 272, 272, 670, 713, 688, 688, 688, 688, 688, 533, 688, 648, 648, 648, 648, 601, 591, 595,
    544, 544, 544, 544, 544, 544, 844, 523, 530, 530, 530, 530, 247, 247, 247, 247, 586, 552, 570,
    570, 570, 570, 570, 571, 566, 551, 551, 551, 551, 473, 576, 473,
];

/// Characters at 0x80 to 0x9F of Windows-1252; U+FFFD where it has none.
const HIGH: [char; 32] = [
    '€', '\u{fffd}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{fffd}', 'Ž', '\u{fffd}',
    '\u{fffd}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{fffd}', 'ž', 'Ÿ',
];

/// A text in Windows-1252; a minus sign is a dash, and what the encoding does not have a question mark.
pub fn encoded(text: &str) -> Vec<u8> {
    text.chars()
        .map(|c| match c {
            ' '..='~' | '\u{a0}'..='ÿ' => c as u8,
            '−' => 0x96,
            _ => HIGH
                .iter()
                .position(|high| *high == c && c != '\u{fffd}')
                .map_or(b'?', |place| 0x80 + place as u8),
        })
        .collect()
}

pub fn width(text: &str, size: f64) -> f64 {
    let thousandths =
        encoded(text).iter().map(|byte| u32::from(WIDTHS[usize::from(byte - b' ')])).sum::<u32>();
    f64::from(thousandths) * size / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_encoded_and_measured() {
        assert_eq!(encoded("a–é… −1 漢"), [b'a', 0x96, 0xe9, 0x85, b' ', 0x96, b'1', b' ', b'?']);
        assert!((width("WWW", 10.0) - 26.61).abs() < 1e-9, "{}", width("WWW", 10.0));
        assert_eq!(width("", 10.0), 0.0);
    }
}
