//! Filters that retry, limit, break and cache.

use serde_json::{Value, json};

use super::actions::Actions;
use super::definition::Definition;
use super::settings::{Settings, find_in, relaxed};
use super::values::{Outcome, bytes, object, seconds, status};

type Read = Result<Outcome, String>;

/// The time limit of Resilience4j, in seconds, unless the file sets it.
const TIME_LIMIT: f64 = 1.0;

/// Retry.
pub(super) fn retry(it: &Definition, actions: &mut Actions) -> Read {
    let retries = it.one("retries").map_or(Ok(3), str::parse).map_err(|_| "`retries` is not a number.")?;
    let mut methods = it.many("methods");
    if methods.is_empty() {
        methods.push("GET".to_owned());
    }
    let mut statuses = Vec::new();
    for name in it.many("statuses") {
        statuses.push(status(&name).ok_or_else(|| format!("The status `{name}` is unknown."))?);
    }
    let series = match it.many("series") {
        series if series.is_empty() && it.one("series").is_none() => vec!["SERVER_ERROR".to_owned()],
        series => series,
    };
    let mut conditions = vec!["connect-failure", "reset"];
    for name in &series {
        match name.as_str() {
            "SERVER_ERROR" => conditions.push("5xx"),
            "CLIENT_ERROR" => statuses.extend(400..=499),
            "REDIRECTION" => statuses.extend(300..=399),
            _ => return Err(format!("Responses of the series `{name}` cannot be retried.")),
        }
    }
    statuses.retain(|status| *status >= 300);
    statuses.dedup();
    let first =
        it.one("backoff.firstBackoff").map(|text| seconds(text).ok_or("The backoff is not a duration."));
    let most = it.one("backoff.maxBackoff").map(|text| seconds(text).ok_or("The backoff is not a duration."));
    let back_off = match (first.transpose()?, most.transpose()?) {
        (Some(first), most) if first > 0.0 => {
            object(vec![("base_interval", json!(first)), ("max_interval", json!(most))])
        }
        _ => json!({"base_interval": 0.001, "max_interval": 0.001}),
    };
    let timeout = it.one("timeout").and_then(seconds).filter(|time| *time > 0.0);
    actions.resilience.retry = Some(object(vec![
        ("retry_on", json!(conditions)),
        ("retriable_status_codes", if statuses.is_empty() { Value::Null } else { json!(statuses) }),
        ("methods", json!(methods)),
        ("back_off", back_off),
        ("per_try_timeout", json!(timeout)),
    ]));
    actions.resilience.retries = Some(retries);
    Ok(match it.one("backoff.firstBackoff") {
        Some(_) => Outcome::Differs(
            "The backoff between attempts is random, up to the backoff of Spring.".to_owned(),
        ),
        None => Outcome::Done,
    })
}

/// CircuitBreaker, with the settings of Resilience4j in the same file.
pub(super) fn breaker(
    it: &Definition,
    settings: &Settings<'_>,
    serves: &dyn Fn(&str) -> bool,
    actions: &mut Actions,
) -> Read {
    let name = it.one("name").unwrap_or("default");
    let of = |kind: &str, field: &str| {
        let instances = settings.find(&format!("resilience4j.{kind}.instances"));
        let own = instances.and_then(|node| {
            node.members().iter().find(|(key, _)| relaxed(key) == relaxed(name)).map(|(_, node)| node)
        });
        let base = own.and_then(|node| find_in(node, "base-config")).and_then(|node| settings.text(node));
        let base = format!("resilience4j.{kind}.configs.{}", base.as_deref().unwrap_or("default"));
        own.and_then(|node| find_in(node, field))
            .or_else(|| find_in(settings.find(&base)?, field))
            .and_then(|node| settings.text(node))
    };
    let number = |field: &str, default: f64| {
        of("circuitbreaker", field).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let time = |field: &str| of("circuitbreaker", field).and_then(|text| seconds(&text));
    let mut codes = Vec::new();
    for text in it.many("statusCodes") {
        codes.push(status(&text).ok_or_else(|| format!("The status `{text}` is unknown."))?);
    }
    let is_timed = of("circuitbreaker", "sliding-window-type").is_some_and(|kind| kind == "TIME_BASED");
    let calls = number("minimum-number-of-calls", 100.0).min(number("sliding-window-size", 100.0)).max(1.0);
    let window = if is_timed { number("sliding-window-size", 100.0) } else { 60.0 };
    // Without a time no call is slow.
    let slow_rate = match time("slow-call-duration-threshold") {
        Some(_) => json!(number("slow-call-rate-threshold", 100.0)),
        None => Value::Null,
    };
    actions.resilience.breaker = Some(object(vec![
        ("failure_rate_threshold", json!(number("failure-rate-threshold", 50.0))),
        ("slow_call_rate_threshold", slow_rate),
        ("slow_call_duration_threshold", json!(time("slow-call-duration-threshold"))),
        ("minimum_number_of_calls", json!(calls as u64)),
        ("sliding_window", json!(window.clamp(1.0, 3600.0))),
        ("wait_duration_in_open_state", json!(time("wait-duration-in-open-state").unwrap_or(60.0))),
        (
            "permitted_number_of_calls_in_half_open_state",
            json!(number("permitted-number-of-calls-in-half-open-state", 10.0) as u64),
        ),
        ("failure_status_codes", if codes.is_empty() { json!([599]) } else { json!(codes) }),
    ]));
    let limit = of("timelimiter", "timeout-duration").and_then(|text| seconds(&text)).unwrap_or(TIME_LIMIT);
    let is_off = settings
        .text_at("spring.cloud.circuitbreaker.resilience4j.disable-time-limiter")
        .is_some_and(|text| text == "true");
    if !is_off {
        actions.resilience.time_limit = Some(limit);
    }
    fallback(it, serves, actions, &codes)
}

fn fallback(it: &Definition, serves: &dyn Fn(&str) -> bool, actions: &mut Actions, codes: &[u16]) -> Read {
    let window = "The circuit breaker counts the calls in a time window, not a number of calls";
    let Some(uri) = it.one("fallbackUri") else {
        return Ok(Outcome::Differs(format!("{window}.")));
    };
    let Some(path) = uri.strip_prefix("forward:") else {
        return Err(format!("The fallback `{uri}` is not a path of the gateway."));
    };
    if !serves(path) {
        let text = format!(
            "{window}. The fallback `{path}` is code of the application: clients get the gateway's own error; \
             write a route for it, with the plugin respond."
        );
        return Ok(Outcome::Differs(text));
    }
    let mut statuses: Vec<u16> = vec![502, 503, 504];
    statuses.extend(codes.iter().filter(|code| !statuses.contains(code)).copied().collect::<Vec<_>>());
    actions.plugins.insert(
        "error-page".to_owned(),
        json!({"intercept": !codes.is_empty(), "pages": [{"status": statuses, "uri": format!("{path}$is_args$args"), "response_status": 200}]}),
    );
    Ok(Outcome::Differs(format!(
        "{window}. The fallback is called with GET, and the client gets status 200."
    )))
}

/// RequestRateLimiter. A limit without a known key closes the route.
pub(super) fn rate(it: &Definition, settings: &Settings<'_>, actions: &mut Actions) -> Outcome {
    let argument = |name: &str| {
        it.one(&format!("redis-rate-limiter.{name}")).and_then(|text| text.trim().parse::<f64>().ok())
    };
    let Some(rate) = argument("replenishRate").filter(|rate| *rate > 0.0) else {
        return Outcome::Guard(
            "The limiter is code of the application: write limit-count or limit-req for this route."
                .to_owned(),
        );
    };
    let burst = argument("burstCapacity").unwrap_or(rate);
    let cost = argument("requestedTokens").unwrap_or(1.0).max(1.0);
    let resolver = it.one("key-resolver").or_else(|| it.one("keyResolver")).unwrap_or_default();
    let Some(key) = key(resolver) else {
        let bean = if resolver.is_empty() { "the user's name" } else { resolver };
        return Outcome::Guard(format!(
            "The key of the limit, {bean}, is code of the application: write limit-req with the key as a variable.",
        ));
    };
    let property = |name: &str| {
        settings
            .text_at(&format!("spring.data.redis.{name}"))
            .or_else(|| settings.text_at(&format!("spring.redis.{name}")))
    };
    let code = it.one("status-code").or_else(|| it.one("statusCode")).and_then(status).unwrap_or(429);
    let whole = |value: f64| if value.fract() == 0.0 { json!(value as u64) } else { json!(value) };
    let limit = object(vec![
        ("rate", whole(rate)),
        ("burst", whole((burst - 1.0).max(0.0))),
        ("nodelay", json!(true)),
        ("key", json!(key)),
        ("rejected_code", json!(code)),
        ("cost", if cost > 1.0 { whole(cost) } else { Value::Null }),
        // As in Spring, requests pass while Redis is away.
        ("allow_degradation", json!(true)),
        ("policy", json!("redis")),
        ("redis_host", json!(property("host").unwrap_or_else(|| "127.0.0.1".to_owned()))),
        ("redis_port", json!(property("port").and_then(|text| text.parse::<u16>().ok()).unwrap_or(6379))),
        ("redis_password", json!(property("password").filter(|text| !text.is_empty()))),
        ("redis_username", json!(property("username").filter(|text| !text.is_empty()))),
        ("redis_database", json!(property("database").and_then(|text| text.parse::<u32>().ok()))),
        ("redis_ssl", json!(property("ssl.enabled").map(|text| text == "true"))),
    ]);
    actions.plugins.insert("limit-req".to_owned(), limit);
    Outcome::Differs(format!(
        "The key resolver `{resolver}` is code of the application; because of its name it was converted to `{key}`: check it."
    ))
}

/// The variable that a key resolver means by its name.
fn key(resolver: &str) -> Option<&'static str> {
    let name: String =
        resolver.chars().filter(char::is_ascii_alphanumeric).flat_map(char::to_lowercase).collect();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if has(&["ipkey", "ipaddr", "remoteaddr", "hostaddr", "hostkey", "clientip", "remoteip", "remotekey"])
        || name.starts_with("ip")
    {
        Some("remote_addr")
    } else if has(&["pathkey", "urikey", "urlkey", "apikeyresolver"]) && !has(&["header"]) {
        // `apiKeyResolver` is the usual name of a limit by path.
        Some("uri")
    } else {
        None
    }
}

/// RequestSize.
pub(super) fn body_size(it: &Definition, actions: &mut Actions) -> Read {
    let text = it.one("maxSize").unwrap_or("5MB");
    let size = bytes(text).filter(|size| *size > 0).ok_or_else(|| format!("`{text}` is not a size."));
    match size {
        Ok(size) => {
            actions.plugins.insert("client-control".to_owned(), json!({"max_body_size": size}));
            Ok(Outcome::Done)
        }
        Err(reason) => Ok(Outcome::Guard(reason)),
    }
}

/// LocalResponseCache.
pub(super) fn cache(it: &Definition, actions: &mut Actions) -> Read {
    let text = it.one("timeToLive").unwrap_or("5m");
    let time =
        seconds(text).filter(|time| *time >= 1.0).ok_or_else(|| format!("`{text}` is not a duration."))?;
    actions.cache =
        Some(json!({"methods": ["GET"], "valid": [{"statuses": [200, 206, 301], "seconds": time as u64}]}));
    Ok(Outcome::Differs("The size of the cache is a setting of the gateway, `cache`.".to_owned()))
}
