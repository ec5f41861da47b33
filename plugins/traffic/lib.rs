//! Plugins that choose an upstream, limit the requests to it, or respond instead of it.

mod api_breaker;
mod client_control;
mod compose;
mod dubbo_proxy;
mod fault_injection;
mod forward_proxy;
mod functions;
mod graphql_proxy_cache;
mod http_dubbo;
mod kafka_proxy;
mod limit;
mod mocking;
mod mqtt_proxy;
mod proxy_buffering;
mod proxy_cache;
mod proxy_control;
mod proxy_mirror;
mod realtime;
mod traffic_split;
mod workflow;

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
    &forward_proxy::FORWARD_PROXY,
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
