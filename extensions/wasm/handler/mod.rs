//! Modules with the handler ABI of http-wasm.
//!
//! A module handles the request, and the response if the request continues to the next handler. It runs to its end
//! without waiting: the bodies that it reads are read before. State of a module may be in its memory between both
//! calls, so an exchange has its own instance from the first call to the last one.
//!
//! | module | subject |
//! |---|---|
//! | `state` | the data of an exchange that functions of the host use |
//! | `call`, `functions`, `fields`, `bodies` | functions of the host |
//! | `pool` | the instances of a worker |
//! | `exchange` | an exchange in its instance |
//! | `request`, `response` | the calls for requests and responses |

pub(crate) mod bodies;
pub(crate) mod call;
pub(crate) mod exchange;
pub(crate) mod fields;
pub(crate) mod functions;
pub(crate) mod pool;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod state;
