//! Configuration formats of other programs, which are translated before the check.

use serde_json::Value;

use crate::document::Document;
use crate::problem::Problem;

/// A translated document with the warnings of its translation, or all errors and warnings.
pub type Translated = Result<(Value, Vec<Problem>), Vec<Problem>>;

/// The formats that a file may have besides Sigma's own format.
pub trait Formats {
    /// Returns the name of the format of a document, for example `niubix.json`, or None for Sigma's own format.
    fn detect(&self, document: &Document) -> Option<&'static str>;

    /// Returns the reason to refuse a document in the format of an unsupported program.
    fn refuse(&self, document: &Document) -> Option<Problem>;

    /// Returns the reason to refuse a text that is no document with members, by the format that it has.
    fn refuse_text(&self, _: &str) -> Option<Problem> {
        None
    }

    /// Translates a document for which [`Formats::detect`] returns a name. Pointers and lines of problems refer to the
    /// original document.
    ///
    /// # Errors
    /// Returns all errors and warnings if there is at least one error.
    fn translate(&self, document: &Document) -> Translated;
}

/// Support for Sigma's own format only.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnFormat;

impl Formats for OwnFormat {
    fn detect(&self, _: &Document) -> Option<&'static str> {
        None
    }

    fn refuse(&self, _: &Document) -> Option<Problem> {
        None
    }

    fn translate(&self, document: &Document) -> Translated {
        Ok((document.value.clone(), Vec::new()))
    }
}
