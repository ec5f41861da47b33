//! The steps from the text of files to a document in its full form.

pub mod env;
pub(crate) mod followed;
pub(crate) mod include;
pub(crate) mod quarantine;
pub mod shorthand;
pub mod valid_part;
