//! The `type` and `v` of each line as types, so that the struct of a line always writes them, first and correctly.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::read::VERSION;

macro_rules! tags {
    ($($(#[$doc:meta])* $tag:ident = $name:literal),* $(,)?) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
            pub struct $tag;

            impl Serialize for $tag {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.serialize_str($name)
                }
            }

            impl<'de> Deserialize<'de> for $tag {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    let name = std::borrow::Cow::<str>::deserialize(deserializer)?;
                    if name == $name { Ok($tag) } else { Err(de::Error::custom(format!("type is `{name}`, not `{}`", $name))) }
                }
            }
        )*
    };
}

tags! {
    /// `"type":"task"`.
    Task = "task",
    /// `"type":"sample"`.
    Sample = "sample",
    /// `"type":"episode"`.
    Episode = "episode",
    /// `"type":"error"`.
    Error = "error",
    /// `"type":"metrics"`.
    Metrics = "metrics",
    /// `"type":"end"`.
    End = "end",
}

/// `"v":1`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Version;

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(VERSION)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            VERSION => Ok(Version),
            v => Err(de::Error::custom(format!("line is v{v}, this program reads v{VERSION}"))),
        }
    }
}
