//! Plugins that write access logs and send them to servers.

mod clickhouse_logger;
mod data_mask;
mod elasticsearch_logger;
mod error_log_logger;
mod file_logger;
mod google_cloud_logging;
mod http_logger;
mod http_sender;
mod influxdb_logger;
mod kafka;
mod lago;
mod log_rotate;
mod loggly;
mod loki_logger;
mod message;
mod otlp_logger;
mod rfc5424;
mod rocketmq;
mod skywalking_logger;
mod sls_logger;
mod splunk_hec_logging;
mod syslog;
mod tcp_logger;
mod tencent_cloud_cls;
mod udp_logger;

use clickhouse_logger::CLICKHOUSE_LOGGER;
use data_mask::DATA_MASK;
use elasticsearch_logger::ELASTICSEARCH_LOGGER;
use error_log_logger::ERROR_LOG_LOGGER;
use file_logger::FILE_LOGGER;
use google_cloud_logging::GOOGLE_CLOUD_LOGGING;
use http_logger::HTTP_LOGGER;
use influxdb_logger::INFLUXDB_LOGGER;
use kafka::KAFKA_LOGGER;
use lago::LAGO;
use log_rotate::LOG_ROTATE;
use loggly::LOGGLY;
use loki_logger::LOKI_LOGGER;
use otlp_logger::OTLP_LOGGER;
use rocketmq::ROCKETMQ_LOGGER;
use skywalking_logger::SKYWALKING_LOGGER;
use sls_logger::SLS_LOGGER;
use splunk_hec_logging::SPLUNK_HEC_LOGGING;
use syslog::SYSLOG;
use tcp_logger::TCP_LOGGER;
use tencent_cloud_cls::TENCENT_CLOUD_CLS;
use udp_logger::UDP_LOGGER;

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
    &CLICKHOUSE_LOGGER,
    &DATA_MASK,
    &ELASTICSEARCH_LOGGER,
    &ERROR_LOG_LOGGER,
    &FILE_LOGGER,
    &GOOGLE_CLOUD_LOGGING,
    &HTTP_LOGGER,
    &INFLUXDB_LOGGER,
    &KAFKA_LOGGER,
    &LAGO,
    &LOG_ROTATE,
    &LOGGLY,
    &LOKI_LOGGER,
    &OTLP_LOGGER,
    &ROCKETMQ_LOGGER,
    &SKYWALKING_LOGGER,
    &SLS_LOGGER,
    &SPLUNK_HEC_LOGGING,
    &SYSLOG,
    &TCP_LOGGER,
    &TENCENT_CLOUD_CLS,
    &UDP_LOGGER,
];
