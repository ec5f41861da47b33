//! The cache of a route.

use sigma_config::cache::{Cache, Disk};
use sigma_config::resources::{CachedMethod, IgnoredHeader, RouteCache};
use sigma_http::Method;
use sigma_plugin::cache::{CacheDisk, CacheKey, CacheOrder, CacheRule, Ignored, Lifetime, Tells};

/// The name of the zone of all routes with a `cache`; plugins' zones have other names, as those are not empty.
const ZONE: &str = "";

/// The folder levels on a disk: 16 times 256.
const LEVELS: [u8; 2] = [1, 2];

/// Returns the cache order of a route.
pub(super) fn order(config: &RouteCache, memory: &Cache) -> CacheOrder {
    let ignores = |field| config.ignore_headers.contains(&field);
    let otherwise = config.valid.iter().flat_map(|valid| {
        let statuses = valid.statuses.iter().map(|status| Some(*status));
        // Without statuses, all are meant.
        let all = valid.statuses.is_empty().then_some(None);
        statuses.chain(all).map(|status| (status, valid.seconds))
    });
    let rule = CacheRule {
        zone: ZONE.into(),
        zone_bytes: memory.memory_bytes,
        disk: memory.disk.as_ref().map(disk),
        purges: config.purge,
        methods: config.methods.iter().map(|method| self::method(*method)).collect(),
        statuses: None,
        lifetime: Lifetime::Known { otherwise: otherwise.collect(), guesses: config.heuristic },
        ignores: Ignored {
            cache_control: ignores(IgnoredHeader::CacheControl),
            expires: ignores(IgnoredHeader::Expires),
            accel_expires: ignores(IgnoredHeader::AccelExpires),
            vary: ignores(IgnoredHeader::Vary),
        },
        heeds_requests: config.request_directives,
        keeps_cookies: ignores(IgnoredHeader::SetCookie),
        most_bytes: config.max_body_bytes,
        slice_bytes: config.slice_bytes.unwrap_or(0),
        hides_lifetime: false,
        wait_ms: config.lock_timeout,
        lead_s: config.lock_age,
        waiters_max: config.max_waiters,
        least_uses: config.min_uses,
        revalidates: config.revalidate,
        stale_while_revalidate: config.stale_while_revalidate,
        asks_aside: config.background_update,
        stale_if_error: config.stale_if_error,
        failures: config.stale_statuses.clone(),
        tells: if config.cache_status { Tells::Field } else { Tells::Nothing },
        hides_tags: !config.show_tags,
        key: CacheKey::default(),
    };
    CacheOrder::new(rule, &config.key, config.consumer_isolation)
        .bypassed_by(&config.bypass)
        .kept_out_by(&config.no_store)
}

/// Returns the disk storage of all routes with a `cache`.
pub fn disk(disk: &Disk) -> CacheDisk {
    let Disk { path, max_bytes, inactive } = disk;
    CacheDisk { path: path.clone(), levels: LEVELS.to_vec(), bytes: *max_bytes, inactive_s: *inactive }
}

fn method(method: CachedMethod) -> Method {
    match method {
        CachedMethod::Get => Method::Get,
        CachedMethod::Head => Method::Head,
    }
}
