//! The balancing rules of an upstream, from its configuration.

use sigma_config::resources::{Balance, Upstream};

use super::levels::LevelRules;
use super::sessions::SessionRule;
use super::slow_start::SlowStart;
use super::subsets::SubsetRule;
use super::zones::ZoneRule;

/// The rules of one upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    pub(super) balance: Balance,
    /// The load of a node, in percent of the mean, above which its keys go elsewhere.
    pub(super) bounded_load: Option<u16>,
    pub(super) slow_start: Option<SlowStart>,
    pub(super) levels: LevelRules,
    pub(super) sessions: Option<SessionRule>,
    pub(super) zones: Option<ZoneRule>,
    pub(super) subsets: Option<SubsetRule>,
}

impl Rules {
    /// Returns the rules of an upstream, for a gateway in this zone.
    pub fn new(config: &Upstream, zone: Option<&str>) -> Rules {
        Rules {
            balance: config.balance,
            bounded_load: config.bounded_load,
            slow_start: config.slow_start.as_deref().map(SlowStart::from),
            levels: LevelRules::from(config),
            sessions: SessionRule::of(config),
            zones: ZoneRule::of(config, zone),
            subsets: config.subsets.as_deref().map(SubsetRule::from),
        }
    }

    /// Returns true if keys decide by hash.
    #[inline]
    pub(super) fn hashes(&self) -> bool {
        matches!(self.balance, Balance::Chash | Balance::Maglev | Balance::Rendezvous)
    }

    /// Returns true if latencies are needed, which cost clock readings.
    pub fn needs_latency(&self) -> bool {
        matches!(self.balance, Balance::Ewma | Balance::PeakEwma)
    }
}

/// The type alone.
impl From<Balance> for Rules {
    fn from(balance: Balance) -> Rules {
        let levels = LevelRules::default();
        Rules {
            balance,
            bounded_load: None,
            slow_start: None,
            levels,
            sessions: None,
            zones: None,
            subsets: None,
        }
    }
}
