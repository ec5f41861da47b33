//! What operators may see of exchanges while they run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Taps: `sigma ctl tap` shows exchanges of a running gateway as they end, secrets masked, to keys of the role
/// `admin`. Without a tap nothing is copied. Read once, at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tap {
    /// Taps that may be open at once; 0 for none at all. Each one costs workers the copy of what it sees.
    #[schemars(range(max = 64))]
    pub taps: u16,
    /// Also at the Control API, which asks for no key: whoever reaches its address sees exchanges then.
    pub control_api: bool,
    /// Exchanges that wait for the reader of a tap; more are lost and counted.
    #[schemars(range(min = 1, max = 100_000))]
    pub queue: u32,
    /// Most bytes that are shown of a value.
    #[schemars(range(min = 16, max = 65_536))]
    pub value_bytes: u32,
    /// Most bytes that are shown of the fields of one head. With `queue` and `taps` it bounds the memory that
    /// readers who do not read can take.
    #[schemars(range(min = 256, max = 1_048_576))]
    pub head_bytes: u32,
    /// Seconds after which a tap ends by itself.
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
