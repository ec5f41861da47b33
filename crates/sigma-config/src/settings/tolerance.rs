//! Forms that the strict grammar refuses, but some deployments need.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Forms that are accepted beyond the strict grammar. Parsers disagree on each of them, so all are off by default. An
/// accepted form is turned into its strict form before any other part sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tolerate {
    /// A `%` in a path without two hexadecimal digits after it; it becomes `%25`. Other parsers may read it as the
    /// beginning of an escape.
    pub lone_percent: bool,
    /// Raw UTF-8 in a request target; it becomes percent-encoded.
    pub raw_utf8: bool,
    /// A Host field without a value: the request has no host, and matches routes without one.
    pub empty_host: bool,
    /// Lines that end in LF only in the head of a node's response: for old CGI programs.
    pub bare_lf: bool,
    /// A repeated Content-Length of a node, each time with the same value.
    pub equal_lengths: bool,
}
