//! The description of a change: its author, its time, and its result here.

use serde::{Deserialize, Serialize};

/// Keys that a version names by itself; the others are in its differences.
pub(super) const KEYS_NAMED: usize = 16;
/// Objects that its result names, with the reason why they are not served.
pub(super) const OBJECTS_NAMED: usize = 16;
/// Longer reasons are cut.
pub(super) const REASON_BYTES: usize = 4096;
/// Longer names are cut; a certificate may name its holder at any length.
const NAME_BYTES: usize = 256;

/// The kind of author of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// A caller of the Admin API.
    Admin,
    /// The writer of the configuration file.
    File,
    /// Another writer of the etcd.
    Etcd,
    /// No author: a time to live has ended.
    Expiry,
    /// Unknown: the change came while the process did not watch.
    #[default]
    Unknown,
}

/// Who changed something.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Author {
    /// What sort.
    pub by: By,
    /// The name of the key, or a short id of it where it has no name. Never the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The subject of the caller's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The caller's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The cause of the reload: `SIGHUP`, `watch`, `control`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
}

impl Author {
    /// One of whom no more is known.
    #[must_use]
    pub fn of(by: By) -> Author {
        Author { by, ..Author::default() }
    }

    /// The same, its names fit for a line of a log or a terminal.
    #[must_use]
    pub fn cleaned(self) -> Author {
        let Author { by, key, certificate, address, file, trigger } = self;
        let [key, certificate, address, file, trigger] = [key, certificate, address, file, trigger]
            .map(|name| name.map(|name| cleaned(&name, NAME_BYTES)));
        Author { by, key, certificate, address, file, trigger }
    }
}

/// A text without control characters, of a limited length.
#[must_use]
pub fn cleaned(text: &str, bytes: usize) -> String {
    // Marks that turn the direction of a text, and line ends of Unicode, forge a line as well.
    let forges = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut clean = String::new();
    for letter in text.chars() {
        let letter = if forges(letter) { ' ' } else { letter };
        if clean.len() + letter.len_utf8() > bytes {
            break;
        }
        clean.push(letter);
    }
    clean
}

/// The result of a change on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is on its way.
    Pending,
    /// It is served.
    InForce,
    /// Some of it cannot be served as it was written.
    Quarantined,
    /// Nothing of it is served: the file was refused.
    Refused,
}

/// An object that is not served as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unserved {
    /// Its key.
    pub key: String,
    /// Why.
    pub reason: String,
    /// The form that is served instead.
    pub served: String,
}

/// The result of a change on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// What sort.
    pub state: State,
    /// Why the whole was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The first quarantined objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Unserved>,
}

impl Outcome {
    /// One without a reason.
    #[must_use]
    pub fn of(state: State) -> Outcome {
        Outcome { state, reason: None, objects: Vec::new() }
    }
}

/// The operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// It is new.
    Created,
    /// It is different.
    Changed,
    /// It is gone.
    Deleted,
}

/// How many objects a version changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Objects that are new.
    pub created: u64,
    /// Objects that are different.
    pub changed: u64,
    /// Objects that are gone.
    pub deleted: u64,
}

impl Summary {
    /// Counts one more.
    pub(super) fn add(&mut self, operation: Operation) {
        match operation {
            Operation::Created => self.created += 1,
            Operation::Changed => self.changed += 1,
            Operation::Deleted => self.deleted += 1,
        }
    }

    /// All of them.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.created + self.changed + self.deleted
    }
}

/// One change of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Its number, which grows by one on this node.
    pub version: u64,
    /// When this node saw it, in Unix milliseconds.
    pub time_ms: u64,
    /// Who.
    pub author: Author,
    /// The store's revision; 0 for a file.
    pub revision: u64,
    /// How many objects.
    pub summary: Summary,
    /// The first of their keys.
    pub keys: Vec<String>,
    /// The operation on each of `keys`; empty for versions of earlier programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<Operation>,
    /// The operation of this version.
    pub result: Outcome,
    /// The version that it brought back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<u64>,
    /// A note on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// How objects were before is not kept: that was larger than the limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_values: bool,
    /// Its share of the limit.
    pub bytes: u64,
}

/// An object that a version changed, as the store has it: secrets are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Its key.
    pub key: String,
    /// None if it was not there.
    pub before: Option<Vec<u8>>,
    /// None if it is gone.
    pub after: Option<Vec<u8>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_on_their_line() {
        let check = |name: &str, expected: &str| assert_eq!(cleaned(name, 12), expected, "{name:?}");
        check("alice", "alice");
        check("a\r\nb\u{1b}[2J", "a  b [2J");
        check("a\u{202e}b\u{2028}c\u{85}", "a b c ");
        check("ääääääääää", "ääääää");
        let author =
            Author { key: Some("a\nb".into()), certificate: Some("CN=\0".into()), ..Author::default() };
        let author = author.cleaned();
        assert_eq!((author.key.as_deref(), author.certificate.as_deref()), (Some("a b"), Some("CN= ")));
    }
}
