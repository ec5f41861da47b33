//! What is kept from an upstream that has too much to do, or fails: bounds with a queue, circuit breakers,
//! admission by the rate of success, and limits that follow latency.
//!
//! The machines take time and randomness as arguments. A [`gate::Gate`] and a [`breaker::Breaker`] belong to
//! the process; an [`admission::Admission`] and a [`gradient::Gradient`] belong to one worker and judge by
//! its requests alone, so that nothing is shared for them.

pub mod admission;
pub mod breaker;
pub mod gate;
pub mod gradient;
