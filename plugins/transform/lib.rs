//! Plugins that change requests and responses, or respond from files.

#[path = "body-transformer/mod.rs"]
mod body_transformer;
mod brotli;
mod decompress;
mod degraphql;
mod echo;
#[path = "error-page/mod.rs"]
mod error_page;
#[path = "forward-client-cert/mod.rs"]
mod forward_client_cert;
#[path = "forwarded-fields/mod.rs"]
mod forwarded_fields;
#[path = "grpc-transcode/mod.rs"]
mod grpc_transcode;
#[path = "grpc-web/mod.rs"]
mod grpc_web;
mod gzip;
#[path = "proxy-rewrite/mod.rs"]
mod proxy_rewrite;
#[path = "public-api/mod.rs"]
mod public_api;
#[path = "real-ip/mod.rs"]
mod real_ip;
mod redirect;
#[path = "request-id/mod.rs"]
mod request_id;
mod respond;
#[path = "response-rewrite/mod.rs"]
mod response_rewrite;
#[path = "response-shaping/mod.rs"]
mod response_shaping;
#[path = "security-headers/mod.rs"]
mod security_headers;
mod shared;
#[path = "static-files/mod.rs"]
mod static_files;
#[path = "traffic-label/mod.rs"]
mod traffic_label;
mod zstd;

/// Functions of the targets in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use super::body_transformer::{body_formats, templates};
    pub use super::grpc_transcode::grpc_transcode;
}

use sigma_plugin::Descriptor;

#[cfg(test)]
#[path = "../testing.rs"]
mod testing;
#[cfg(test)]
mod tests;

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
