//! What operators see of the data plane: live traffic, recorded exchanges, and why a request met its route.

pub(crate) mod explain;
pub mod live;
pub mod tap;
