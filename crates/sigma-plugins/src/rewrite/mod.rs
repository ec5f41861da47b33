//! Requests and responses are changed, answered elsewhere, or answered from files.

pub(crate) mod body_transformer;
pub(crate) mod brotli;
mod budget;
pub(crate) mod coding;
pub(crate) mod degraphql;
pub(crate) mod echo;
mod encoder;
pub(crate) mod error_page;
pub(crate) mod exit_transformer;
pub(crate) mod fields;
pub(crate) mod forward_client_cert;
pub(crate) mod forwarded_fields;
pub(crate) mod grpc_web;
pub(crate) mod gzip;
pub(crate) mod proxy_rewrite;
pub(crate) mod public_api;
pub(crate) mod real_ip;
pub(crate) mod redirect;
pub(crate) mod request_id;
mod response_body;
pub(crate) mod response_rewrite;
pub(crate) mod security_headers;
pub(crate) mod static_files;
pub(crate) mod substitute;
pub(crate) mod traffic_label;
pub(crate) mod zstd;
