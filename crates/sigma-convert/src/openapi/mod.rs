//! OpenAPI: makes a configuration of a document, and a document of a Protocol Buffers definition.

pub mod import;
mod of_proto;

pub use of_proto::openapi;
