//! Plugins that limit the use of the gateway by a client, a consumer or a route.

pub(crate) mod bandwidth;
pub(crate) mod conn;
pub(crate) mod count;
mod counts;
pub(crate) mod graphql;
mod quota;
pub(crate) mod req;
mod sessions;

pub(crate) use quota::bounded;
