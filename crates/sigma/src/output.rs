//! Output of commands that print a document, not a report.

use std::io::Write;
use std::process::ExitCode;

/// Prints a text of any length.
pub(crate) fn printed(text: &[u8]) -> ExitCode {
    // A pager that was closed early has seen enough.
    let _ = std::io::stdout().write_all(text);
    ExitCode::SUCCESS
}
