//! Answers of authorities that are stapled to a certificate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether an authority's answer (OCSP) is fetched for a certificate and stapled to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SslStapling {
    /// It is.
    pub enabled: bool,
    /// Answers are stapled whoever has signed them and whatever they say. They are about this certificate and not
    /// over all the same.
    pub skip_verify: bool,
    /// Seconds after which the responder is asked anew; earlier where its answer is about to run out.
    #[schemars(range(min = 60))]
    pub cache_ttl: u32,
}

impl Default for SslStapling {
    fn default() -> Self {
        SslStapling { enabled: false, skip_verify: false, cache_ttl: 3_600 }
    }
}
