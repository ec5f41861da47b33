//! Code that several plugins of this group share, most of it about traces: contexts that travel with a request, and spans
//! that collectors get.
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
//! | `matched` | the patterns of a route that a request matches |
//! | `agent` | the messages to a StatsD agent |

pub(crate) mod agent;
pub(crate) mod b3;
pub(crate) mod call;
pub(crate) mod finished_exchange;
pub(crate) mod ids;
pub(crate) mod matched;
pub(crate) mod otlp;
pub(crate) mod post;
pub(crate) mod sampling;
pub(crate) mod sw8;
pub(crate) mod w3c;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
