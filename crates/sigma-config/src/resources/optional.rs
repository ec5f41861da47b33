//! Optional fields, which cost one pointer until they are set.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use sigma_schema::cidr::CidrSet;
use sigma_schema::expr::Expr;

/// A type with a value for an unset field.
pub trait Unset: Sized + 'static {
    /// The value.
    const UNSET: &'static Self;
}

impl<T: 'static> Unset for Vec<T> {
    const UNSET: &'static Self = &Vec::new();
}

impl Unset for String {
    const UNSET: &'static Self = &String::new();
}

impl<K: 'static, V: 'static> Unset for BTreeMap<K, V> {
    const UNSET: &'static Self = &BTreeMap::new();
}

impl Unset for CidrSet {
    const UNSET: &'static Self = &CidrSet::EMPTY;
}

impl Unset for Expr {
    const UNSET: &'static Self = &Expr::ALWAYS;
}

/// A field that few of many resources set. It takes one pointer while it is unset, and reads as the empty value. A
/// field that was written stays written, even if it is empty.
#[derive(Clone, PartialEq, Eq)]
pub struct Optional<T>(Option<Box<T>>);

impl<T> Optional<T> {
    /// Returns whether the field is unset.
    pub fn is_unset(&self) -> bool {
        self.0.is_none()
    }
}

impl<T> Default for Optional<T> {
    fn default() -> Self {
        Optional(None)
    }
}

impl<T> From<T> for Optional<T> {
    fn from(value: T) -> Self {
        Optional(Some(Box::new(value)))
    }
}

impl<T: Unset> Deref for Optional<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::UNSET)
    }
}

impl<T: Unset + Clone> Optional<T> {
    /// Returns the value for a change, and sets the field.
    pub fn set(&mut self) -> &mut T {
        self.0.get_or_insert_with(|| Box::new(T::UNSET.clone()))
    }
}

impl<T: Unset + fmt::Debug> fmt::Debug for Optional<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Unset + Serialize> Serialize for Optional<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Optional<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Optional::from)
    }
}

impl<T: JsonSchema> JsonSchema for Optional<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unset_field_reads_as_empty_and_a_written_one_as_written() {
        let unset = Optional::<Vec<u8>>::default();
        assert!(unset.is_unset() && unset.is_empty());
        let written: Optional<Vec<u8>> = serde_json::from_str("[]").unwrap();
        assert!(!written.is_unset() && written.is_empty());
        assert_eq!(size_of::<Optional<Expr>>(), size_of::<usize>());
        let mut changed = Optional::<Vec<u8>>::default();
        changed.set().push(1);
        assert_eq!(serde_json::to_string(&changed).unwrap(), "[1]");
    }
}
