//! Overload protection of upstreams: limits with a queue, circuit breakers, admission by success rate, and limits
//! that follow latency.
//!
//! The state machines take time and randomness as arguments. A [`gate::Gate`] and a [`breaker::Breaker`] belong to
//! the process; an [`admission::Admission`] and a [`gradient::Gradient`] belong to one worker and use only its
//! requests, so that they need no sharing.

pub mod admission;
pub mod breaker;
pub mod gate;
pub mod gradient;
