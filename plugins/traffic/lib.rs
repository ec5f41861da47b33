//! Where requests go, and what becomes of them on the way: plugins that choose an upstream, spare
//! it, or answer in its place.

pub(crate) mod api_breaker;
pub(crate) mod client_control;
mod compose;
pub(crate) mod dubbo_proxy;
pub(crate) mod fault_injection;
mod functions;
pub(crate) mod graphql_proxy_cache;
pub(crate) mod http_dubbo;
pub(crate) mod kafka_proxy;
mod limit;
pub(crate) mod mocking;
pub(crate) mod mqtt_proxy;
pub(crate) mod proxy_buffering;
pub(crate) mod proxy_cache;
pub(crate) mod proxy_control;
pub(crate) mod proxy_mirror;
pub(crate) mod realtime;
pub(crate) mod traffic_split;
pub(crate) mod workflow;

use sigma_plugin::Descriptor;

/// Functions of the targets in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use crate::limit::graphql::fuzzing::graphql;
}

#[cfg(test)]
#[path = "../testing.rs"]
mod testing;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[
    &api_breaker::API_BREAKER,
    &functions::AWS_LAMBDA,
    &functions::AZURE_FUNCTIONS,
    &compose::batch_requests::BATCH_REQUESTS,
    &client_control::CLIENT_CONTROL,
    &compose::composition::COMPOSE,
    &dubbo_proxy::DUBBO_PROXY,
    &fault_injection::FAULT_INJECTION,
    &limit::graphql::GRAPHQL_LIMIT_COUNT,
    &graphql_proxy_cache::GRAPHQL_PROXY_CACHE,
    &http_dubbo::HTTP_DUBBO,
    &kafka_proxy::KAFKA_PROXY,
    &limit::bandwidth::LIMIT_BANDWIDTH,
    &limit::conn::LIMIT_CONN,
    &limit::count::LIMIT_COUNT,
    &limit::req::LIMIT_REQ,
    &mocking::MOCKING,
    &mqtt_proxy::MQTT_PROXY,
    &functions::OPENFUNCTION,
    &functions::OPENWHISK,
    &proxy_buffering::PROXY_BUFFERING,
    &proxy_cache::PROXY_CACHE,
    &proxy_control::PROXY_CONTROL,
    &proxy_mirror::PROXY_MIRROR,
    &realtime::REALTIME,
    &realtime::REALTIME_PUBLISH,
    &traffic_split::TRAFFIC_SPLIT,
    &workflow::WORKFLOW,
];

/// The plugins of this group.
#[cfg(test)]
fn kinds() -> Vec<std::sync::Arc<dyn sigma_plugin::Kind>> {
    ROSTER.iter().map(|descriptor| std::sync::Arc::new(**descriptor) as _).collect()
}
