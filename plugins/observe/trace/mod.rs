//! The way of a request through several services: contexts that travel with it, and spans that collectors get.
//!
//! Nothing here waits for a collector: a request draws ids when it comes, and when it is over its spans are made
//! from what the gateway has recorded of it anyway, and handed to the batches.
//!
//! | file | question |
//! |---|---|
//! | `ids` | what names a trace and a span |
//! | `w3c`, `b3`, `sw8` | how contexts stand in header fields |
//! | `sampling` | which traces are kept |
//! | `course` | what is told of an exchange |
//! | `otlp` | the messages of OpenTelemetry, and what they are of |
//! | `post`, `call` | how a collector is told: over HTTP, by gRPC |

mod b3;
pub(crate) mod call;
mod course;
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
