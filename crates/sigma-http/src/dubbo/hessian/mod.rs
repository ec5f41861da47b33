//! Values in Hessian 2, as Dubbo's serialization `hessian2` writes them.

mod read;
mod write;

use std::rc::Rc;

pub use read::Reader;
pub use write::{begin_map, end_chunks, end_map, write_chunk, write_text};

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// Yes or no.
    Bool(bool),
    /// A whole number of 32 bits or 64.
    Whole(i64),
    /// A number with a point.
    Double(f64),
    /// Milliseconds since 1970.
    Date(i64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A list or array, whatever its type.
    List(Vec<Value>),
    /// A map, whatever its type.
    Map(Vec<(Value, Value)>),
    /// An object of a class, with the values of its fields.
    Object(Rc<Class>, Vec<Value>),
    /// Something that stands before it. It is not followed: a few bytes could stand for a great many.
    Reference(i64),
}

/// A class, as it is defined before its first object.
#[derive(Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: Box<str>,
    /// The names of its fields.
    pub fields: Box<[Box<str>]>,
}

impl Value {
    /// The value of a field of an object.
    pub fn field(&self, name: &str) -> Option<&Value> {
        let Value::Object(class, values) = self else { return None };
        let at = class.fields.iter().position(|field| **field == *name)?;
        values.get(at)
    }
}

#[cfg(test)]
mod tests;
