//! Access logs that plugins write: what an entry says, and where it goes.

mod clickhouse_logger;
mod data_mask;
mod elasticsearch_logger;
pub(crate) mod entry;
mod error_log_logger;
mod file_logger;
mod format;
mod google_cloud_logging;
mod http_logger;
mod http_sender;
mod kafka;
mod lago;
mod log_rotate;
mod loggly;
mod loki_logger;
mod message;
mod rfc5424;
mod rocketmq;
mod skywalking_logger;
mod sls_logger;
mod splunk_hec_logging;
mod syslog;
mod tcp_logger;
mod tencent_cloud_cls;
mod udp_logger;

pub(crate) use clickhouse_logger::CLICKHOUSE_LOGGER;
pub(crate) use data_mask::DATA_MASK;
pub(crate) use elasticsearch_logger::ELASTICSEARCH_LOGGER;
pub(crate) use error_log_logger::ERROR_LOG_LOGGER;
pub(crate) use file_logger::FILE_LOGGER;
pub(crate) use google_cloud_logging::GOOGLE_CLOUD_LOGGING;
pub(crate) use http_logger::HTTP_LOGGER;
pub(crate) use kafka::KAFKA_LOGGER;
pub(crate) use lago::LAGO;
pub(crate) use log_rotate::LOG_ROTATE;
pub(crate) use loggly::LOGGLY;
pub(crate) use loki_logger::LOKI_LOGGER;
pub(crate) use rocketmq::ROCKETMQ_LOGGER;
pub(crate) use skywalking_logger::SKYWALKING_LOGGER;
pub(crate) use sls_logger::SLS_LOGGER;
pub(crate) use splunk_hec_logging::SPLUNK_HEC_LOGGING;
pub(crate) use syslog::SYSLOG;
pub(crate) use tcp_logger::TCP_LOGGER;
pub(crate) use tencent_cloud_cls::TENCENT_CLOUD_CLS;
pub(crate) use udp_logger::UDP_LOGGER;

use std::sync::Arc;

use serde_json::{Map, Value};
use sigma_config::described::schema_of;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet};

use crate::batch::{self, Processor};

/// What plugins have in common that ship entries in batches, with bodies where they are wanted; to be completed
/// with `..shipper::<C>()`.
const fn shipper<C: Configuration>() -> Descriptor {
    Descriptor {
        phases: entry::PHASES,
        metadata_schema: Some(schema_of::<batch::Metadata>),
        variables: &entry::VARIABLES,
        ..Descriptor::of::<C>()
    }
}

/// The same for plugins whose entries never have a body that they would collect.
const fn bodiless_shipper<C: Configuration>() -> Descriptor {
    Descriptor {
        phases: PhaseSet::of(&[Phase::Log]),
        variables: entry::VARIABLES.split_at(entry::FORMATS).0,
        ..shipper::<C>()
    }
}

/// Entries that leave as they are, each a JSON text.
impl entry::Sink for Arc<Processor> {
    fn take(&self, entry: Map<String, Value>, ctx: &Context, env: &Env<'_>) {
        self.push(Value::Object(entry).to_string().into_bytes(), ctx, env);
    }
}

#[cfg(test)]
mod tests;
