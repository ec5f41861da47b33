//! How the nodes of an upstream are chosen, as its configuration says.

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
    /// Percent of the mean load that a node may have before keys that hash to it go elsewhere.
    pub(super) bounded_load: Option<u16>,
    pub(super) slow_start: Option<SlowStart>,
    pub(super) levels: LevelRules,
    pub(super) sessions: Option<SessionRule>,
    pub(super) zones: Option<ZoneRule>,
    pub(super) subsets: Option<SubsetRule>,
}

impl Rules {
    /// The rules of an upstream, for a gateway in this zone.
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

    /// Whether a request goes where its key hashes to.
    #[inline]
    pub(super) fn hashes(&self) -> bool {
        matches!(self.balance, Balance::Chash | Balance::Maglev)
    }

    /// Whether latencies are asked for: they cost reading a clock.
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
