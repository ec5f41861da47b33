//! Views for operators: live traffic, recorded exchanges, and the reasons why a request met its route.

pub(crate) mod explain;
pub mod live;
pub mod tap;
