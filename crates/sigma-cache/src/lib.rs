//! A shared response cache (RFC 9111): the rules of storing and reuse, and the memory.
//!
//! This crate knows no routes, contacts no nodes and reads no clock: the caller passes request, response and time.
//! All workers share one [`Zone`] by name.

mod body;
mod directives;
pub mod disk_cache;
mod fetch;
mod fill;
mod freshness;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod label;
mod mark;
mod purge;
mod rules;
mod single_flight;
mod slices;
mod stored;
mod zone;

pub use body::{Blocks, Body, PIECE_BYTES, Piece, Reader, Reading};
pub use directives::Directives;
pub use disk_cache::{DiskCache, Erasure};
pub use fetch::Fetch;
pub use fill::{Draft, Fill};
pub use freshness::{ExchangeTimes, Freshness};
pub use label::Label;
pub use purge::Purge;
pub use rules::{Answered, MayUse, may_keep, may_use};
pub use single_flight::{SingleFlight, SingleFlightWaiter};
pub use slices::{SliceTable, Version, is_all, slice, slice_key, table_key};
pub use stored::{Stored, TAG_FIELDS};
pub use zone::{Epoch, Lead, Zone, Zones};
