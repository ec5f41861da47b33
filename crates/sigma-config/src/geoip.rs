//! Databases that tell where an address is.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Files in MaxMind's format (`.mmdb`) that the variables `geoip_…` come from: what they say of the client's
/// address. They are read at the start, which is refused without them, and again when one changes; one that
/// cannot be used then leaves what was read of it before in force, and the error log says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GeoIp {
    /// The files. Each variable comes from the first one that knows it of the address.
    #[schemars(length(max = 8))]
    pub databases: Vec<PathBuf>,
    /// Largest file in bytes. A file is held in memory; a database of all cities is below 200 MB.
    #[schemars(range(min = 1024))]
    pub database_bytes: u64,
}

impl Default for GeoIp {
    fn default() -> Self {
        GeoIp { databases: Vec::new(), database_bytes: 512 << 20 }
    }
}
