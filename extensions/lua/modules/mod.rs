//! Modules that scripts require.

pub(crate) mod cjson;
mod consumer;
pub(crate) mod digest;
mod jwt;
mod keys;
pub(crate) mod tables;
pub(crate) mod text;

pub(crate) mod resty;

pub(crate) mod apisix;
