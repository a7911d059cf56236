//! The fixed clock that chat templates see.
//!
//! Some templates print today's date. A prompt that changes at midnight would break "same seed, same bytes",
//! so the date is `SOURCE_DATE_EPOCH` (<https://reproducible-builds.org/specs/source-date-epoch/>), or 26
//! July 2024, the fallback in Llama 3's template.

use std::ffi::CString;

/// 2024-07-26 00:00:00 UTC.
const DEFAULT: i64 = 1_721_952_000;
/// Longest formatted date, in bytes.
const LONGEST: usize = 4096;

/// Seconds since 1970, UTC.
pub(crate) fn now() -> i64 {
    std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT)
}

/// The C library's `strftime` in the C locale, as in Python; empty where the result is longer than [`LONGEST`] bytes.
pub(crate) fn format(seconds: i64, format: &str) -> String {
    let Ok(format) = CString::new(format) else { return String::new() };
    let mut text = [0_u8; LONGEST];
    // SAFETY: all bytes of a `tm` may be 0.
    let mut time: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid; without a result `time` stays as it is.
    unsafe { libc::gmtime_r(&raw const seconds, &raw mut time) };
    // SAFETY: at most `LONGEST` bytes are written; the format ends in a zero byte; no locale was ever set.
    let length =
        unsafe { libc::strftime(text.as_mut_ptr().cast(), LONGEST, format.as_ptr(), &raw const time) };
    String::from_utf8_lossy(&text[..length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_known_days() {
        assert_eq!(format(DEFAULT, "%d %b %Y"), "26 Jul 2024");
        assert_eq!(format(DEFAULT, "%A %F %H:%M %%%q%"), "Friday 2024-07-26 00:00 %%q%");
        assert_eq!(format(951_782_400, "%Y-%m-%d %a"), "2000-02-29 Tue");
        assert_eq!(format(-1, "%d %B %y %I:%M:%S %p"), "31 December 69 11:59:59 PM");
        assert_eq!(format(DEFAULT, "%999999999d"), "");
    }
}
