//! JSON without NaN and infinity.
//!
//! serde_json writes a non-finite number as `null`, and its formatters cannot tell it from a real null, so the value is
//! walked once before it is written. The walk allocates nothing.

use serde::ser::{self, Error as _, Serialize};
use serde_json::Error;

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
pub fn text(value: &impl Serialize) -> Result<String> {
    let mut output = Vec::with_capacity(32); // most values are numbers and names
    write(&mut output, value)?;
    String::from_utf8(output).map_err(|error| Failure::data(format!("cannot be written as JSON: {error}")))
}

/// Visits every number of a value and produces nothing.
struct Walk;

type Walked = std::result::Result<(), Error>;

fn finite(value: f64) -> Walked {
    match value.is_finite() {
        true => Ok(()),
        false => Err(Error::custom(format!("{value} cannot be written in a record"))),
    }
}

/// Names the field that a refused value is in.
fn within(key: &str, outcome: Walked) -> Walked {
    outcome.map_err(|refusal| Error::custom(format!("{key}: {refusal}")))
}

macro_rules! nothing_to_check {
    ($($method:ident($($argument:ty),*),)*) => {
        $(fn $method(self, $(_: $argument),*) -> Walked { Ok(()) })*
    };
}

macro_rules! walk_on {
    ($($method:ident($($argument:ty),*),)*) => {
        $(fn $method(self, $(_: $argument),*) -> std::result::Result<Walk, Error> { Ok(Walk) })*
    };
}

impl ser::Serializer for Walk {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Walk;
    type SerializeTuple = Walk;
    type SerializeTupleStruct = Walk;
    type SerializeTupleVariant = Walk;
    type SerializeMap = Walk;
    type SerializeStruct = Walk;
    type SerializeStructVariant = Walk;

    nothing_to_check! {
        serialize_bool(bool), serialize_i8(i8), serialize_i16(i16), serialize_i32(i32), serialize_i64(i64),
        serialize_u8(u8), serialize_u16(u16), serialize_u32(u32), serialize_u64(u64), serialize_char(char),
        serialize_str(&str), serialize_bytes(&[u8]), serialize_none(), serialize_unit(),
        serialize_unit_struct(&'static str), serialize_unit_variant(&'static str, u32, &'static str),
    }

    walk_on! {
        serialize_seq(Option<usize>), serialize_tuple(usize), serialize_tuple_struct(&'static str, usize),
        serialize_tuple_variant(&'static str, u32, &'static str, usize), serialize_map(Option<usize>),
        serialize_struct(&'static str, usize), serialize_struct_variant(&'static str, u32, &'static str, usize),
    }

    fn serialize_f32(self, value: f32) -> Walked {
        finite(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Walked {
        finite(value)
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Walked {
        value.serialize(Walk)
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(self, _: &'static str, value: &T) -> Walked {
        value.serialize(Walk)
    }

    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Walked {
        within(variant, value.serialize(Walk))
    }
}

macro_rules! walk_compounds {
    ($($trait:ident: $method:ident($($key:ident)?),)*) => {
        $(impl ser::$trait for Walk {
            type Ok = ();
            type Error = Error;

            fn $method<T: ?Sized + Serialize>(&mut self, $($key: &'static str,)? value: &T) -> Walked {
                let outcome = value.serialize(Walk);
                $(let outcome = within($key, outcome);)?
                outcome
            }

            fn end(self) -> Walked {
                Ok(())
            }
        })*
    };
}

walk_compounds! {
    SerializeSeq: serialize_element(),
    SerializeTuple: serialize_element(),
    SerializeTupleStruct: serialize_field(),
    SerializeTupleVariant: serialize_field(),
    SerializeStruct: serialize_field(key),
    SerializeStructVariant: serialize_field(key),
}

impl ser::SerializeMap for Walk {
    type Ok = ();
    type Error = Error;

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
