//! sigma-observe
