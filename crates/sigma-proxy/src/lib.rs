//! sigma-proxy
