//! Where requests go, and what becomes of them on the way: plugins that choose an upstream, spare
//! it, or answer in its place.

pub(crate) mod api_breaker;
pub(crate) mod client_control;
pub(crate) mod dubbo_proxy;
pub(crate) mod fault_injection;
pub(crate) mod graphql_proxy_cache;
pub(crate) mod http_dubbo;
pub(crate) mod kafka_proxy;
pub(crate) mod mocking;
pub(crate) mod mqtt_proxy;
pub(crate) mod proxy_buffering;
pub(crate) mod proxy_cache;
pub(crate) mod proxy_control;
pub(crate) mod proxy_mirror;
pub(crate) mod realtime;
pub(crate) mod text;
pub(crate) mod traffic_split;
pub(crate) mod turns;
pub(crate) mod workflow;
