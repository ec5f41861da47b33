//! GeoIP databases.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Files in MaxMind's format (`.mmdb`) for the variables `geoip_…`, looked up by the client's address. They are read at
/// the start, which fails without them, and again when one changes. If a changed file is invalid, the old data stays in
/// use and the error log has a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GeoIp {
    /// The files. Each variable is taken from the first file that has it for the address.
    #[schemars(length(max = 8))]
    pub databases: Vec<PathBuf>,
    /// Maximum size of a file in bytes. A file is held in memory; a database of all cities is below 200 MB.
    #[schemars(range(min = 1024))]
    pub database_bytes: u64,
}

impl Default for GeoIp {
    fn default() -> Self {
        GeoIp { databases: Vec::new(), database_bytes: 512 << 20 }
    }
}
