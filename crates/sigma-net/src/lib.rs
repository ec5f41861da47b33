//! sigma-net
