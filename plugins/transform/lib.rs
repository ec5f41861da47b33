//! Requests and responses are changed, answered elsewhere, or answered from files.

mod arguments;
pub(crate) mod body_transformer;
pub(crate) mod brotli;
pub(crate) mod degraphql;
pub(crate) mod echo;
mod encoder;
pub(crate) mod error_page;
pub(crate) mod exit_transformer;
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
pub(crate) mod response_rewrite;
pub(crate) mod response_shaping;
pub(crate) mod security_headers;
pub(crate) mod static_files;
pub(crate) mod traffic_label;
mod uri_template;
mod whole_body;
pub(crate) mod zstd;

/// What must hold of bodies, whatever their sender writes.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use super::body_transformer::{body_formats, templates};
    pub use super::grpc_transcode::grpc_transcode;
}

use sigma_plugin::Descriptor;

#[cfg(test)]
mod coding_tests;
#[cfg(test)]
#[path = "../testing.rs"]
mod testing;

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[
    &body_transformer::BODY_TRANSFORMER,
    &brotli::BROTLI,
    &degraphql::DEGRAPHQL,
    &echo::ECHO,
    &error_page::ERROR_PAGE,
    &exit_transformer::EXIT_TRANSFORMER,
    &forward_client_cert::FORWARD_CLIENT_CERT,
    &forwarded_fields::FORWARDED_FIELDS,
    &grpc_transcode::GRPC_TRANSCODE,
    &grpc_web::GRPC_WEB,
    &gzip::GZIP,
    &proxy_rewrite::PROXY_REWRITE,
    &public_api::PUBLIC_API,
    &real_ip::REAL_IP,
    &redirect::REDIRECT,
    &request_id::REQUEST_ID,
    &response_rewrite::RESPONSE_REWRITE,
    &response_shaping::RESPONSE_SHAPING,
    &security_headers::SECURITY_HEADERS,
    &static_files::STATIC_FILES,
    &traffic_label::TRAFFIC_LABEL,
    &zstd::ZSTD,
];

/// The plugins of this group.
#[cfg(test)]
fn kinds() -> Vec<std::sync::Arc<dyn sigma_plugin::Kind>> {
    ROSTER.iter().map(|descriptor| std::sync::Arc::new(**descriptor) as _).collect()
}
