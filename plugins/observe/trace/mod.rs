//! The way of a request through several services: contexts that travel with it, and spans that collectors get.
//!
//! No request waits for a collector: a request draws ids when it comes, and when it is over its spans are
//! made from the records of the gateway, and handed to the batches.
//!
//! | file | question |
//! |---|---|
//! | `ids` | what names a trace and a span |
//! | `w3c`, `b3`, `sw8` | how contexts stand in header fields |
//! | `sampling` | which traces are kept |
//! | `finished_exchange` | the recorded course of an exchange |
//! | `otlp` | the messages of OpenTelemetry, and their resource |
//! | `post`, `call` | the transport to a collector: HTTP, gRPC |

mod b3;
pub(crate) mod call;
mod finished_exchange;
mod ids;
mod opentelemetry;
pub(crate) mod otlp;
pub(crate) mod post;
mod sampling;
mod skywalking;
mod sw8;
pub(crate) mod w3c;
mod zipkin;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

pub(crate) use opentelemetry::OPENTELEMETRY;
pub(crate) use skywalking::SKYWALKING;
pub(crate) use zipkin::ZIPKIN;
