//! `limit-count`: requests per window of time. The counting is in `crate::shared::count`.

#[cfg(test)]
mod tests;

use sigma_plugin::{Descriptor, Phase, PhaseSet};
use sigma_schema::described::schema_of;

use crate::shared::count::{self, LimitCount};

/// The plugin.
pub(crate) static LIMIT_COUNT: Descriptor = Descriptor {
    name: "limit-count",
    version: "0.4",
    priority: 1002,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter]),
    metadata_schema: Some(schema_of::<count::Metadata>),
    warnings: Some(|_, conf| count::warnings(conf)),
    build: |build| Ok(LimitCount::new(build)?),
    variables: count::VARIABLES,
    group_field: Some(count::GROUP_FIELD),
    ..Descriptor::of::<count::Config>()
};
