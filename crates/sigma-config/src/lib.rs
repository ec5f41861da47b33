//! sigma-config
