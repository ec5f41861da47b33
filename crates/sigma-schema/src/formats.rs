//! Formats of other programs, which are translated before the check.

use serde_json::Value;

use crate::document::Document;
use crate::problem::Problem;

/// A translated document, with the warnings of its translation; or all errors and warnings.
pub type Translated = Result<(Value, Vec<Problem>), Vec<Problem>>;

/// The formats that a file may have besides Sigma's own.
pub trait Formats {
    /// The name of the format that a document has, for example `niubix.json`; None for Sigma's own.
    fn detect(&self, document: &Document) -> Option<&'static str>;

    /// The reason to refuse a document: it has the format of a program whose files are not read.
    fn refuse(&self, document: &Document) -> Option<Problem>;

    /// Translates a document for which [`Formats::detect`] returns a name. Pointers and lines of problems are those of
    /// the document.
    ///
    /// # Errors
    /// Returns all errors and warnings if there is at least one error.
    fn translate(&self, document: &Document) -> Translated;
}

/// Sigma's own format alone.
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
