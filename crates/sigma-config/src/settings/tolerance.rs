//! Forms that the strict grammar refuses, and that some deployments cannot do without.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Forms that are taken beyond the strict grammar. Each of these lets in something that parsers read in
/// different ways, so each is off; what is taken is turned into its strict form before anybody sees
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tolerate {
    /// A `%` in a path that two hexadecimal digits do not follow; it becomes `%25`. Others may read it
    /// as the beginning of an escape.
    pub lone_percent: bool,
    /// UTF-8 in a request target as it is; it becomes percent-encoded.
    pub raw_utf8: bool,
    /// A Host field without a value: the request is one for no host, and meets routes without one.
    pub empty_host: bool,
    /// Lines in the head of a node's answer that end in LF alone: for old CGI programs.
    pub bare_lf: bool,
    /// A node's Content-Length that is said several times, each time the same.
    pub equal_lengths: bool,
}
