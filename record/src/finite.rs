//! JSON without NaN and infinity.
//!
//! serde_json writes a non-finite number as `null` and gives its formatters no way to tell it from a real null, so
//! the value is walked once before it is written. The walk allocates nothing.

use std::fmt::{self, Display};

use serde::ser::{self, Serialize};

use crate::failure::{Failure, Result};

/// Writes `value` as compact JSON at the end of `output`.
///
/// # Errors
/// A NaN or an infinity anywhere in it, or a value that JSON cannot hold; `output` may then end in a part of it.
pub fn write(output: &mut Vec<u8>, value: &impl Serialize) -> Result<()> {
    value.serialize(Walk).map_err(|refusal| {
        Failure::data(refusal).hint("a value that was lost is no zero and no null: find where it arose")
    })?;
    serde_json::to_writer(output, value)
        .map_err(|error| Failure::data(format!("cannot be written as JSON: {error}")))
}

/// `value` as compact JSON text.
///
/// # Errors
/// As [`write`].
pub fn text(value: &impl Serialize) -> Result<String> {
    let mut output = Vec::new();
    write(&mut output, value)?;
    String::from_utf8(output).map_err(|error| Failure::data(format!("cannot be written as JSON: {error}")))
}

/// Why a value is refused.
#[derive(Debug)]
struct Refusal(String);

impl Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

impl ser::Error for Refusal {
    fn custom<T: Display>(message: T) -> Self {
        Refusal(message.to_string())
    }
}

impl Refusal {
    /// Names the field that the refused value is in.
    fn within(self, key: &str) -> Self {
        Refusal(format!("{key}: {}", self.0))
    }
}

/// Visits every number of a value and produces nothing.
struct Walk;

type Walked = std::result::Result<(), Refusal>;

fn finite(value: f64) -> Walked {
    if value.is_finite() {
        return Ok(());
    }
    Err(Refusal(format!("{value} is no number that a record can hold")))
}

macro_rules! nothing_to_check {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(fn $method(self, _value: $type) -> Walked { Ok(()) })*
    };
}

impl ser::Serializer for Walk {
    type Ok = ();
    type Error = Refusal;
    type SerializeSeq = Walk;
    type SerializeTuple = Walk;
    type SerializeTupleStruct = Walk;
    type SerializeTupleVariant = Walk;
    type SerializeMap = Walk;
    type SerializeStruct = Walk;
    type SerializeStructVariant = Walk;

    nothing_to_check! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_char: char,
        serialize_str: &str, serialize_bytes: &[u8], serialize_unit_struct: &'static str,
    }

    fn serialize_f32(self, value: f32) -> Walked {
        finite(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Walked {
        finite(value)
    }

    fn serialize_none(self) -> Walked {
        Ok(())
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Walked {
        value.serialize(Walk)
    }

    fn serialize_unit(self) -> Walked {
        Ok(())
    }

    fn serialize_unit_variant(self, _name: &'static str, _index: u32, _variant: &'static str) -> Walked {
        Ok(())
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(self, _name: &'static str, value: &T) -> Walked {
        value.serialize(Walk)
    }

    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Walked {
        value.serialize(Walk).map_err(|refusal| refusal.within(variant))
    }

    fn serialize_seq(self, _length: Option<usize>) -> std::result::Result<Walk, Refusal> {
        Ok(Walk)
    }

    fn serialize_tuple(self, _length: usize) -> std::result::Result<Walk, Refusal> {
        Ok(Walk)
    }

    fn serialize_tuple_struct(
        self,
        _name: &'static str,
        _length: usize,
    ) -> std::result::Result<Walk, Refusal> {
        Ok(Walk)
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _length: usize,
    ) -> std::result::Result<Walk, Refusal> {
        Ok(Walk)
    }

    fn serialize_map(self, _length: Option<usize>) -> std::result::Result<Walk, Refusal> {
        Ok(Walk)
    }

    fn serialize_struct(self, _name: &'static str, _length: usize) -> std::result::Result<Walk, Refusal> {
        Ok(Walk)
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _length: usize,
    ) -> std::result::Result<Walk, Refusal> {
        Ok(Walk)
    }
}

macro_rules! walk_elements {
    ($($trait:ident: $method:ident),* $(,)?) => {
        $(impl ser::$trait for Walk {
            type Ok = ();
            type Error = Refusal;

            fn $method<T: ?Sized + Serialize>(&mut self, value: &T) -> Walked {
                value.serialize(Walk)
            }

            fn end(self) -> Walked {
                Ok(())
            }
        })*
    };
}

walk_elements! {
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field,
}

macro_rules! walk_fields {
    ($($trait:ident),* $(,)?) => {
        $(impl ser::$trait for Walk {
            type Ok = ();
            type Error = Refusal;

            fn serialize_field<T: ?Sized + Serialize>(&mut self, key: &'static str, value: &T) -> Walked {
                value.serialize(Walk).map_err(|refusal| refusal.within(key))
            }

            fn end(self) -> Walked {
                Ok(())
            }
        })*
    };
}

walk_fields! { SerializeStruct, SerializeStructVariant }

impl ser::SerializeMap for Walk {
    type Ok = ();
    type Error = Refusal;

    fn serialize_key<T: ?Sized + Serialize>(&mut self, _key: &T) -> Walked {
        Ok(())
    }

    fn serialize_value<T: ?Sized + Serialize>(&mut self, value: &T) -> Walked {
        value.serialize(Walk)
    }

    fn end(self) -> Walked {
        Ok(())
    }
}
