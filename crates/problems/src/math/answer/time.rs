//! Times of the day: `12:30`, `6:00 p.m.`, `6 a.m.` A ratio may be written as one, `3:15`.

use super::expression::Expression;

/// A time of the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    hour: u32,
    minute: u32,
    /// True if it is after noon, if that is said.
    afternoon: Option<bool>,
}

impl Time {
    /// The time that `text` is, written with two digits for minutes, or with a.m. or p.m.
    pub fn read(text: &str) -> Option<Time> {
        let spelled: String = text
            .replace("\\text", "")
            .to_lowercase()
            .chars()
            .filter(|sign| !matches!(sign, '{' | '}' | '.' | '~' | ' ' | '$' | '\\' | ',' | '\u{a0}'))
            .collect();
        let halves = [("am", Some(false)), ("pm", Some(true)), ("", None)];
        let (time, afternoon) =
            halves.iter().find_map(|(half, afternoon)| Some((spelled.strip_suffix(half)?, *afternoon)))?;
        let (hour, minute) = match time.split_once(':') {
            Some((hour, minute)) if minute.len() == 2 => (hour, minute),
            None if afternoon.is_some() => (time, "0"),
            _ => return None,
        };
        let digits =
            |text: &str| text.bytes().all(|sign| sign.is_ascii_digit()) && (1..=2).contains(&text.len());
        if !digits(hour) || !digits(minute) {
            return None;
        }
        let time = Time { hour: hour.parse().ok()?, minute: minute.parse().ok()?, afternoon };
        let hours = if afternoon.is_some() { 1..=12 } else { 0..=24 };
        (hours.contains(&time.hour) && time.minute < 60).then_some(time)
    }

    /// The hour of 24, where it is said.
    fn of_day(self) -> Option<u32> {
        match self.afternoon {
            Some(afternoon) => Some(self.hour % 12 + if afternoon { 12 } else { 0 }),
            None => (self.hour > 12 || self.hour == 0).then_some(self.hour % 24),
        }
    }

    /// Returns true if both are the same time, or could be if one does not name the half of the day.
    pub fn same(self, other: Time) -> bool {
        let half = match (self.of_day(), other.of_day()) {
            (Some(one), Some(other)) => one == other,
            _ => self.hour % 12 == other.hour % 12,
        };
        half && self.minute == other.minute
    }

    /// The number that it may be: a ratio, or an hour (`6 p.m.`).
    pub fn number(self) -> Option<Expression> {
        let [hour, minute] = [self.hour, self.minute].map(|part| Expression::whole(part.into()));
        match (self.afternoon, self.minute) {
            (Some(_), 0) => Some(hour),
            (None, 1..) => Some(Expression::quotient(hour, minute)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Time;

    #[test]
    fn times_are_compared_as_times() {
        let same = |left: &str, right: &str| Time::read(left).unwrap().same(Time::read(right).unwrap());
        for (left, right) in [
            ("12:30", "12:30"),
            ("\\text{6:00 p.m.}", "6:00 \\text{ p.m.}"),
            ("6 PM", "6:00\\text{ p.m.}"),
            ("18:00", "6:00 p.m."),
            ("6:00", "6:00 a.m."),
            ("0:30", "12:30 a.m."),
        ] {
            assert!(same(left, right) && same(right, left), "{left} {right}");
        }
        for (left, right) in [
            ("12:30", "10:25"),
            ("3:15", "1:05"),
            ("6:00 \\text{ p.m.}", "6:00 \\text{ a.m.}"),
            ("18:00", "6:00 a.m."),
            ("12:00 p.m.", "12:00 a.m."),
            ("6:30", "18:00"),
        ] {
            assert!(!same(left, right) && !same(right, left), "{left} {right}");
        }
        for text in ["3:4", "12:60", "25:00", "13:00 p.m.", "1:2:3", "12", ":30", "x:30", "123:30", "am"] {
            assert_eq!(Time::read(text), None, "{text}");
        }
    }
}
