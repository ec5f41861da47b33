//! What the fuzz targets share: a second reading of the same rules to compare with.

pub mod naive;
