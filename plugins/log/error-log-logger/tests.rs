//! Targets by metadata, and the servers' input.

use std::time::Duration;

use serde_json::json;
use sigma_plugin::Kind as _;
use sigma_schema::plugins::PluginSchemas;

use super::*;

/// Returns the result of these metadata.
fn shipping(metadata: &Value) -> Result<Option<(tracing::Level, Pace)>, String> {
    let roster = crate::testing::roster();
    roster.check(NAME, PluginScope::Metadata, metadata).map_err(|refusal| refusal.to_string())?;
    let residents = |metadata: &Value| {
        let (metadata, node) = (Arc::new(metadata.clone()), Arc::new(Node::default()));
        sigma_plugin::Residents::new(
            &roster,
            None,
            &|name| (name == NAME).then(|| Arc::clone(&metadata)),
            &node,
        )
    };
    residents(metadata).map_err(|refused| format!("{refused:?}"))?;
    let schema = roster.schema(NAME, PluginScope::Metadata).unwrap();
    let mut filled = metadata.clone();
    for (field, about) in schema["properties"].as_object().unwrap() {
        if let (None, Some(default)) = (filled.get(field), about.get("default")) {
            filled[field] = default.clone();
        }
    }
    let node = Arc::new(Node::default());
    let built = Shipping::new(&Build::new(NAME, &Value::Null, "", &filled, &node))?;
    Ok(built.0.map(|plan| (plan.level, plan.pace)))
}

#[test]
fn defaults_agree_with_the_page() {
    let (level, pace) = shipping(&json!({"host": "h", "port": 1})).unwrap().unwrap();
    assert_eq!(level, tracing::Level::WARN);
    let times = (pace.inactive_timeout, pace.buffer_duration, pace.retry_delay);
    assert_eq!(times, (Duration::from_secs(3), Duration::from_secs(60), Duration::from_secs(1)));
    assert_eq!((&*pace.name, pace.batch_max_size, pace.max_retry_count), (NAME, 1000, 0));
    let node = Arc::new(Node::default());
    let nothing = Build::new(NAME, &Value::Null, "", &Value::Null, &node);
    assert!(Shipping::new(&nothing).unwrap().0.is_none(), "without metadata nothing is shipped");
}

#[test]
fn levels() {
    let check = |level: &str, expected: tracing::Level| {
        let metadata = json!({"host": "h", "port": 1, "level": level});
        assert_eq!(shipping(&metadata).unwrap().unwrap().0, expected, "{level}");
    };
    for level in ["STDERR", "EMERG", "ALERT", "CRIT", "ERR", "ERROR"] {
        check(level, tracing::Level::ERROR);
    }
    check("WARN", tracing::Level::WARN);
    check("NOTICE", tracing::Level::INFO);
    check("INFO", tracing::Level::INFO);
    check("DEBUG", tracing::Level::DEBUG);
}

#[test]
fn bad_metadata() {
    let check = |metadata: Value, expected: &str| {
        let refused = shipping(&metadata).unwrap_err();
        assert!(refused.contains(expected), "{metadata}: {refused}");
    };
    check(json!({}), "value should match only one schema, but matches none");
    let both = json!({"tcp": {"host": "h", "port": 1}, "clickhouse": {"logtable": "t"}});
    check(both, "value should match only one schema, but matches both schemas 1 and 3");
    check(json!({"tcp": {"host": "h", "port": 1}, "level": "warn"}), "matches none of the enum values");
    check(
        json!({"tcp": {"host": "h", "port": 1, "tls": true, "tls_server_name": "a b"}}),
        "tcp.tls_server_name: ",
    );
    check(json!({"clickhouse": {}}), "clickhouse.logtable: it is empty");
    let broker = json!([{"host": "h", "port": 1}]);
    check(json!({"kafka": {"brokers": broker, "kafka_topic": "a b"}}), "kafka.kafka_topic: ");
    check(json!({"kafka": {"brokers": [], "kafka_topic": "t"}}), "expect array to have at least 1 items");
}

#[test]
fn doubtful_metadata_has_warnings() {
    let check = |scope: PluginScope, conf: Value, expected: &[(&str, &str)]| {
        let found = ERROR_LOG_LOGGER.warnings(scope, &conf);
        let found: Vec<(&str, &str)> =
            found.iter().map(|problem| (problem.pointer.as_str(), problem.code)).collect();
        assert_eq!(found, expected, "{conf}");
    };
    check(PluginScope::Http, json!({}), &[("", "without_effect")]);
    let metadata = |conf, expected: &[(&str, &str)]| check(PluginScope::Metadata, conf, expected);
    metadata(json!({"tcp": {"tls": true}}), &[("tcp.tls", "unverified")]);
    metadata(json!({"tcp": {"tls": true, "ssl_verify": true}}), &[]);
    metadata(json!({"tcp": {"tls_server_name": "a"}}), &[("tcp.tls_server_name", "without_effect")]);
    metadata(
        json!({"clickhouse": {"endpoint_addr": "http://h"}}),
        &[("clickhouse.endpoint_addr", "cleartext")],
    );
    metadata(json!({"host": "h", "port": 1}), &[("host", "deprecated")]);
    let kafka = json!({"kafka": {
        "brokers": [{"host": "h", "port": 1, "sasl_config": {"user": "u", "password": "p"}}], "producer_type": "sync"
    }});
    metadata(
        kafka,
        &[("kafka.brokers[0].sasl_config", "cleartext"), ("kafka.producer_type", "without_effect")],
    );
}
