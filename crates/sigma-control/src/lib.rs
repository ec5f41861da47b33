//! sigma-control
