//! The clock that chat templates see. It stands still.
//!
//! Some templates print today's date. A prompt that changes at midnight would break "same seed, same bytes" and the
//! rule that a growing conversation only appends, so the date is the one in `SOURCE_DATE_EPOCH`
//! (<https://reproducible-builds.org/specs/source-date-epoch/>), or 26 July 2024, which Llama 3's own template falls
//! back to.

/// 2024-07-26 00:00:00 UTC.
const STANDING: i64 = 1_721_952_000;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Seconds since 1970, UTC.
pub(crate) fn now() -> i64 {
    std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok()).unwrap_or(STANDING)
}

/// The directives of `strftime` that chat templates use; others stay as they are written.
pub(crate) fn format(seconds: i64, format: &str) -> String {
    let days = seconds.div_euclid(86_400);
    let of_day = seconds.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[days.rem_euclid(7) as usize];
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);

    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('Y') => text += &format!("{year:04}"),
            Some('y') => text += &format!("{:02}", year.rem_euclid(100)),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('e') => text += &format!("{day:2}"),
            Some('B') => text += month_name,
            Some('b' | 'h') => text += &month_name[..3],
            Some('A') => text += day_name,
            Some('a') => text += &day_name[..3],
            Some('H') => text += &format!("{hour:02}"),
            Some('I') => text += &format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => text += if hour < 12 { "AM" } else { "PM" },
            Some('M') => text += &format!("{minute:02}"),
            Some('S') => text += &format!("{:02}", of_day % 60),
            Some('F') => text += &format!("{year:04}-{month:02}-{day:02}"),
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }
    text
}

/// Year, month (1 to 12) and day (1 to 31) of a day counted from 1970-01-01 in the proleptic Gregorian calendar
/// (Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_known_days() {
        assert_eq!(format(STANDING, "%d %b %Y"), "26 Jul 2024");
        assert_eq!(format(STANDING, "%A %F %H:%M %%%q%"), "Friday 2024-07-26 00:00 %%q%");
        assert_eq!(format(951_782_400, "%Y-%m-%d %a"), "2000-02-29 Tue");
        assert_eq!(format(-1, "%d %B %y %I:%M:%S %p"), "31 December 69 11:59:59 PM");
    }
}
