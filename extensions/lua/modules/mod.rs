//! Modules that scripts require.

pub(crate) mod cjson;
pub(crate) mod digest;
mod jwt;
pub(crate) mod tables;
pub(crate) mod text;

pub(crate) mod resty;

pub(crate) mod apisix;
