//! Taps, which show exchanges to operators.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Taps: `sigma ctl tap` shows exchanges of a running gateway as they end, with secrets masked. It needs a key of the
/// role `admin`. Without an open tap nothing is copied. Read once, at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tap {
    /// Maximum number of open taps; 0 for none. Each one costs workers a copy of the exchanges that it shows.
    #[schemars(range(max = 64))]
    pub taps: u16,
    /// Whether the Control API has taps too. It needs no key, so every client that reaches its address can see
    /// exchanges.
    pub control_api: bool,
    /// Maximum number of exchanges that wait for the reader of a tap; more are dropped and counted.
    #[schemars(range(min = 1, max = 100_000))]
    pub queue: u32,
    /// Maximum number of bytes that are shown of a value.
    #[schemars(range(min = 16, max = 65_536))]
    pub value_bytes: u32,
    /// Maximum number of bytes that are shown of the fields of one head. With `queue` and `taps` it limits the memory
    /// for slow readers.
    #[schemars(range(min = 256, max = 1_048_576))]
    pub head_bytes: u32,
    /// Maximum duration of a tap in seconds.
    #[schemars(range(min = 1, max = 86_400))]
    pub seconds: u32,
}

impl Default for Tap {
    fn default() -> Self {
        Tap {
            taps: 4,
            control_api: false,
            queue: 500,
            value_bytes: 1_024,
            head_bytes: 16_384,
            seconds: 3_600,
        }
    }
}
