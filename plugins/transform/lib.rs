//! Plugins that change requests and responses, or respond from files.

mod arguments;
mod body_transformer;
mod brotli;
mod decompress;
mod degraphql;
mod echo;
mod encoder;
mod error_page;
mod forward_client_cert;
mod forwarded_fields;
mod grpc_transcode;
mod grpc_web;
mod gzip;
mod locations;
mod proxy_rewrite;
mod public_api;
mod query_rules;
mod real_ip;
mod redirect;
mod request_id;
mod respond;
mod response_rewrite;
mod response_shaping;
mod security_headers;
mod static_files;
mod traffic_label;
mod whole_body;
mod zstd;

/// Functions of the targets in `fuzz/`.
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
    &decompress::DECOMPRESS,
    &degraphql::DEGRAPHQL,
    &echo::ECHO,
    &error_page::ERROR_PAGE,
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
    &respond::RESPOND,
    &response_rewrite::RESPONSE_REWRITE,
    &response_shaping::RESPONSE_SHAPING,
    &security_headers::SECURITY_HEADERS,
    &static_files::STATIC_FILES,
    &traffic_label::TRAFFIC_LABEL,
    &zstd::ZSTD,
];
