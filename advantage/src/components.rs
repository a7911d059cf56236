//! Entries of `reward_components` with weights, for `gdpo`.

use std::str::FromStr;

use record::failure::Result;
use record::read::Line;
use record::sample::Sample;
use record::text::Text;

/// A component and its weight, such as `success=1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Component {
    /// Its key in `reward_components`.
    pub name: String,
    pub weight: f64,
}

impl FromStr for Component {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, weight) = text.split_once('=').unwrap_or((text, "1"));
        let number = weight.parse().ok().filter(|weight: &f64| weight.is_finite());
        match number.filter(|_| !name.is_empty()) {
            Some(weight) => Ok(Component { name: name.to_owned(), weight }),
            None => Err("not NAME or NAME=WEIGHT with a finite number".to_owned()),
        }
    }
}

/// The component `name` of a sample.
///
/// # Errors
/// 65: it is missing. That is not the same as 0, because nothing was scored.
pub fn of(sample: &Sample, line: &Line, name: &str) -> Result<f64> {
    let found = sample.reward_components.as_ref().and_then(|components| components.get(&Text::from(name)));
    found.copied().ok_or_else(|| {
        let has = sample.reward_components.iter().flat_map(|components| components.keys());
        let has: Vec<&str> = has.map(|name| &**name).collect();
        let has = match has[..] {
            [] => "it has none".to_owned(),
            _ => format!("it has {}", has.join(", ")),
        };
        sample
            .failure(line, format!("`reward_components` has no {name}: it was not scored"))
            .hint(format!("{has}; what was not scored is not 0"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_has_a_name_and_a_weight() {
        let of = |text: &str| text.parse::<Component>().ok().map(|found| (found.name, found.weight));
        assert_eq!(of("format"), Some(("format".to_owned(), 1.0)));
        assert_eq!(of("a.b=-0.5"), Some(("a.b".to_owned(), -0.5)));
        for wrong in ["", "=1", "x=", "x=nan", "x=1=2", "x=inf"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
