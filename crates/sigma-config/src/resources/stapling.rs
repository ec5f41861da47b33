//! OCSP stapling of a certificate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether an OCSP response is fetched for a certificate and stapled to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SslStapling {
    /// Whether stapling is enabled.
    pub enabled: bool,
    /// Do not verify the signature and the status of a response. It must still be for this certificate and not be
    /// expired.
    pub skip_verify: bool,
    /// Seconds until the responder is queried again; earlier if its response expires soon.
    #[schemars(range(min = 60))]
    pub cache_ttl: u32,
}

impl Default for SslStapling {
    fn default() -> Self {
        SslStapling { enabled: false, skip_verify: false, cache_ttl: 3_600 }
    }
}
