//! The number of worker threads.

use std::num::NonZeroU16;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of worker threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Workers {
    /// A fixed number, at least 1.
    Count(NonZeroU16),
    /// `auto`: one per CPU.
    #[default]
    Auto,
}

/// The two forms of [`Workers`] in text.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum WorkersForm {
    Count(NonZeroU16),
    Word(AutoWord),
}

/// The word `auto`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum AutoWord {
    /// One per CPU.
    Auto,
}

impl Serialize for Workers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Workers::Count(count) => WorkersForm::Count(*count),
            Workers::Auto => WorkersForm::Word(AutoWord::Auto),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Workers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match WorkersForm::deserialize(deserializer)? {
            WorkersForm::Count(count) => Workers::Count(count),
            WorkersForm::Word(AutoWord::Auto) => Workers::Auto,
        })
    }
}
