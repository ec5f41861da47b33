//! Plugins that write access logs and send them to servers.

#[path = "clickhouse-logger/mod.rs"]
mod clickhouse_logger;
#[path = "data-mask/mod.rs"]
mod data_mask;
#[path = "elasticsearch-logger/mod.rs"]
mod elasticsearch_logger;
#[path = "error-log-logger/mod.rs"]
mod error_log_logger;
#[path = "file-logger/mod.rs"]
mod file_logger;
#[path = "google-cloud-logging/mod.rs"]
mod google_cloud_logging;
#[path = "http-logger/mod.rs"]
mod http_logger;
#[path = "influxdb-logger/mod.rs"]
mod influxdb_logger;
#[path = "kafka-logger/mod.rs"]
mod kafka_logger;
mod lago;
#[path = "log-rotate/mod.rs"]
mod log_rotate;
mod loggly;
#[path = "loki-logger/mod.rs"]
mod loki_logger;
#[path = "otlp-logger/mod.rs"]
mod otlp_logger;
#[path = "rocketmq-logger/mod.rs"]
mod rocketmq_logger;
mod shared;
#[path = "skywalking-logger/mod.rs"]
mod skywalking_logger;
#[path = "sls-logger/mod.rs"]
mod sls_logger;
#[path = "splunk-hec-logging/mod.rs"]
mod splunk_hec_logging;
mod syslog;
#[path = "tcp-logger/mod.rs"]
mod tcp_logger;
#[path = "tencent-cloud-cls/mod.rs"]
mod tencent_cloud_cls;
#[path = "udp-logger/mod.rs"]
mod udp_logger;

use sigma_plugin::{Configuration, Descriptor, Phase, PhaseSet};
use sigma_plugin_kit::{batch, log_entry};
use sigma_schema::described::schema_of;

/// Shared parts of plugins that ship entries in batches, with bodies where they are wanted; to be completed
/// with `..shipper::<C>()`.
const fn shipper<C: Configuration>() -> Descriptor {
    Descriptor {
        phases: log_entry::PHASES,
        metadata_schema: Some(schema_of::<batch::Metadata>),
        variables: &log_entry::VARIABLES,
        ..Descriptor::of::<C>()
    }
}

/// The same for plugins whose entries never have a body that they would collect.
const fn bodiless_shipper<C: Configuration>() -> Descriptor {
    Descriptor {
        phases: PhaseSet::of(&[Phase::Log]),
        variables: log_entry::VARIABLES.split_at(log_entry::FORMATS).0,
        ..shipper::<C>()
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
#[path = "../testing.rs"]
mod testing;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[
    &clickhouse_logger::CLICKHOUSE_LOGGER,
    &data_mask::DATA_MASK,
    &elasticsearch_logger::ELASTICSEARCH_LOGGER,
    &error_log_logger::ERROR_LOG_LOGGER,
    &file_logger::FILE_LOGGER,
    &google_cloud_logging::GOOGLE_CLOUD_LOGGING,
    &http_logger::HTTP_LOGGER,
    &influxdb_logger::INFLUXDB_LOGGER,
    &kafka_logger::KAFKA_LOGGER,
    &lago::LAGO,
    &log_rotate::LOG_ROTATE,
    &loggly::LOGGLY,
    &loki_logger::LOKI_LOGGER,
    &otlp_logger::OTLP_LOGGER,
    &rocketmq_logger::ROCKETMQ_LOGGER,
    &skywalking_logger::SKYWALKING_LOGGER,
    &sls_logger::SLS_LOGGER,
    &splunk_hec_logging::SPLUNK_HEC_LOGGING,
    &syslog::SYSLOG,
    &tcp_logger::TCP_LOGGER,
    &tencent_cloud_cls::TENCENT_CLOUD_CLS,
    &udp_logger::UDP_LOGGER,
];
