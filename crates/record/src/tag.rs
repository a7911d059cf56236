//! The `type` and `v` of each line as types, so that the struct of a line always writes them, first and correctly.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::read::VERSION;

macro_rules! tags {
    ($($(#[$doc:meta])* $tag:ident,)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
            #[serde(rename_all = "lowercase")]
            pub enum $tag {
                /// The only value.
                #[default]
                $tag,
            }
        )*
    };
}

tags! {
    /// `"type":"task"`.
    Task,
    /// `"type":"sample"`.
    Sample,
    /// `"type":"episode"`.
    Episode,
    /// `"type":"error"`.
    Error,
    /// `"type":"joint"`.
    Joint,
    /// `"type":"metrics"`.
    Metrics,
    /// `"type":"end"`.
    End,
}

/// `"v":1`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordVersion;

impl Serialize for RecordVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(VERSION)
    }
}

impl<'de> Deserialize<'de> for RecordVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            VERSION => Ok(RecordVersion),
            v => Err(de::Error::custom(format!("line is v{v}, this program reads v{VERSION}"))),
        }
    }
}
