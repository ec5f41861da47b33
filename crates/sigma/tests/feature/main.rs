//! Features that need more than one exchange: whole processes, many connections, signals, files.

#![allow(clippy::unwrap_used, reason = "a failed step of a test may panic")]

mod active_checks;
mod admin;
mod admin_tls;
mod answer_fields;
mod balance;
mod bodies;
mod cache_disk;
mod cache_slices;
mod certificates;
mod cli;
mod client_certificates;
mod client_ends;
mod client_ocsp;
mod cloud_identity;
mod cluster;
mod config_sources;
mod contrib;
mod dashboard;
mod datagrams;
mod directories;
mod discovery;
mod docs;
mod drain;
mod dubbo;
mod early_data;
mod edge_profile;
mod explain;
mod ext_proc;
mod failures;
mod fastcgi;
mod forward_proxy;
mod go;
mod h2;
mod h2_grpc;
mod h2_limits;
mod h2_load;
mod h2_nodes;
mod h3_nodes;
mod health_sharing;
mod held_bytes;
mod history;
mod imports;
mod listener_limits;
mod live;
mod load;
mod load_shedding;
mod log_rotation;
mod log_shippers;
mod logs;
mod lua_files;
mod lua_hostile;
mod lua_output;
mod lua_snippets;
mod managed;
mod members;
mod names;
mod native_histograms;
mod node_addresses;
mod node_faults;
mod node_limits;
mod node_states;
mod nodes;
mod operators;
mod orders;
mod original_destination;
mod outliers;
mod overload;
mod plugins_admin;
mod plugins_auth;
mod plugins_bandwidth;
mod plugins_buffering;
mod plugins_cache;
mod plugins_compose;
mod plugins_kafka_proxy;
mod plugins_limit;
mod plugins_log;
mod plugins_log_errors;
mod plugins_log_kafka;
mod plugins_log_rocketmq;
mod plugins_log_sockets;
mod plugins_realtime;
mod plugins_rewrite;
mod plugins_runner;
mod plugins_traffic;
#[cfg(feature = "wasm")]
mod plugins_wasm;
mod policies;
mod pool;
mod process;
mod profiles;
mod purges;
mod quarantine;
mod reader;
mod registration;
mod registries;
mod registries_containers;
mod reload;
mod retries;
mod sandbox;
mod secrets;
mod seed;
mod servers;
mod service;
mod sockets;
mod stalled_clients;
mod stapling;
mod status;
mod stream_guards;
mod stream_plugins;
mod stream_postgres;
mod streams;
mod stress;
mod strict;
mod supervised;
mod tap;
mod ticket_keys;
mod tls;
mod tls_material;
mod tls_offer;
mod tracing;
mod upgrade;
mod upstream_credentials;
mod websocket;

use std::time::Duration;

use sigma_testkit::{Gateway, Origin};

/// The program under test.
const SIGMA: &str = env!("CARGO_BIN_EXE_sigma");

/// For what takes a loaded machine a while.
const PATIENCE: Duration = Duration::from_secs(30);

/// A configuration with one listener, `settings` at its top, and one route for everything.
fn catch_all(settings: &str, nodes: &str, upstream: &str) -> String {
    format!(
        "workers: 2\nlisteners:\n  - address: \"{{listen}}\"\n{settings}\nroutes:\n  - id: all\n    uri: \"/*\"\n    enable_websocket: true\n    upstream:\n      nodes: {nodes}\n{upstream}\n"
    )
}

/// `{"127.0.0.1:port": 1}` for each of the origins.
fn nodes(origins: &[&Origin]) -> String {
    let each: Vec<String> = origins.iter().map(|o| format!("\"127.0.0.1:{}\": 1", o.port())).collect();
    format!("{{ {} }}", each.join(", "))
}

/// A gateway in front of `origin`.
fn in_front_of(origin: &Origin, settings: &str) -> Gateway {
    Gateway::start(SIGMA, &catch_all(settings, &nodes(&[origin]), "")).unwrap()
}
