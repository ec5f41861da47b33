//! Plugins that choose an upstream, limit the requests to it, or respond instead of it.

#[path = "api-breaker/mod.rs"]
mod api_breaker;
#[path = "aws-lambda/mod.rs"]
mod aws_lambda;
#[path = "azure-functions/mod.rs"]
mod azure_functions;
#[path = "batch-requests/mod.rs"]
mod batch_requests;
#[path = "client-control/mod.rs"]
mod client_control;
mod compose;
#[path = "dubbo-proxy/mod.rs"]
mod dubbo_proxy;
#[path = "fault-injection/mod.rs"]
mod fault_injection;
#[path = "forward-proxy/mod.rs"]
mod forward_proxy;
#[path = "graphql-limit-count/mod.rs"]
mod graphql_limit_count;
#[path = "graphql-proxy-cache/mod.rs"]
mod graphql_proxy_cache;
#[path = "http-dubbo/mod.rs"]
mod http_dubbo;
#[path = "kafka-proxy/mod.rs"]
mod kafka_proxy;
#[path = "limit-bandwidth/mod.rs"]
mod limit_bandwidth;
#[path = "limit-conn/mod.rs"]
mod limit_conn;
#[path = "limit-count/mod.rs"]
mod limit_count;
#[path = "limit-req/mod.rs"]
mod limit_req;
mod mocking;
#[path = "mqtt-proxy/mod.rs"]
mod mqtt_proxy;
mod openfunction;
mod openwhisk;
#[path = "proxy-buffering/mod.rs"]
mod proxy_buffering;
#[path = "proxy-cache/mod.rs"]
mod proxy_cache;
#[path = "proxy-control/mod.rs"]
mod proxy_control;
#[path = "proxy-mirror/mod.rs"]
mod proxy_mirror;
mod realtime;
#[path = "realtime-publish/mod.rs"]
mod realtime_publish;
mod shared;
#[path = "traffic-split/mod.rs"]
mod traffic_split;
mod workflow;

use sigma_plugin::Descriptor;

/// Functions of the targets in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use crate::graphql_limit_count::fuzzing::graphql;
}

#[cfg(test)]
#[path = "../testing.rs"]
mod testing;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[
    &api_breaker::API_BREAKER,
    &aws_lambda::AWS_LAMBDA,
    &azure_functions::AZURE_FUNCTIONS,
    &batch_requests::BATCH_REQUESTS,
    &client_control::CLIENT_CONTROL,
    &compose::COMPOSE,
    &dubbo_proxy::DUBBO_PROXY,
    &fault_injection::FAULT_INJECTION,
    &forward_proxy::FORWARD_PROXY,
    &graphql_limit_count::GRAPHQL_LIMIT_COUNT,
    &graphql_proxy_cache::GRAPHQL_PROXY_CACHE,
    &http_dubbo::HTTP_DUBBO,
    &kafka_proxy::KAFKA_PROXY,
    &limit_bandwidth::LIMIT_BANDWIDTH,
    &limit_conn::LIMIT_CONN,
    &limit_count::LIMIT_COUNT,
    &limit_req::LIMIT_REQ,
    &mocking::MOCKING,
    &mqtt_proxy::MQTT_PROXY,
    &openfunction::OPENFUNCTION,
    &openwhisk::OPENWHISK,
    &proxy_buffering::PROXY_BUFFERING,
    &proxy_cache::PROXY_CACHE,
    &proxy_control::PROXY_CONTROL,
    &proxy_mirror::PROXY_MIRROR,
    &realtime::REALTIME,
    &realtime_publish::REALTIME_PUBLISH,
    &traffic_split::TRAFFIC_SPLIT,
    &workflow::WORKFLOW,
];
