//! Requests and responses are changed, answered elsewhere, or answered from files.

mod arguments;
pub(crate) mod body_transformer;
pub(crate) mod brotli;
pub(crate) mod budget;
mod changed_body;
pub(crate) mod coding;
pub(crate) mod degraphql;
pub(crate) mod echo;
mod encoder;
pub(crate) mod error_page;
pub(crate) mod exit_transformer;
pub(crate) mod fields;
pub(crate) mod forward_client_cert;
pub(crate) mod forwarded_fields;
pub(crate) mod grpc_transcode;
pub(crate) mod grpc_web;
pub(crate) mod gzip;
mod locations;
mod percent;
pub(crate) mod proxy_rewrite;
pub(crate) mod public_api;
mod query_rules;
pub(crate) mod real_ip;
pub(crate) mod redirect;
pub(crate) mod request_id;
pub(crate) mod response_body;
pub(crate) mod response_rewrite;
pub(crate) mod response_shaping;
pub(crate) mod security_headers;
pub(crate) mod static_files;
pub(crate) mod substitute;
pub(crate) mod traffic_label;
mod uri_template;
mod whole_body;
pub(crate) mod zstd;

/// What must hold of bodies, whatever their sender writes.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    pub use super::body_transformer::{body_formats, templates};
    pub use super::grpc_transcode::grpc_transcode;
}
