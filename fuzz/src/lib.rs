//! Shared parts of the fuzz targets: a second reading of the same rules to compare with.

pub mod naive;
