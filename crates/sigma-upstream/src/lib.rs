//! sigma-upstream
