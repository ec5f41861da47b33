//! OpenAPI: a configuration that is made of a document, and the document of a Protocol Buffers definition.

pub mod import;
mod of_proto;

pub use of_proto::openapi;
