//! Output of commands that print a document, not a report.

use std::io::Write;
use std::process::ExitCode;

/// Prints a text of any length.
pub(crate) fn printed(text: &[u8]) -> ExitCode {
    // A pager that was closed early has seen enough.
    let _ = std::io::stdout().write_all(text);
    ExitCode::SUCCESS
}

/// The verdict on a route that matches a request, which these plugins may refuse.
pub(crate) fn verdict(refusers: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = refusers.iter().map(AsRef::as_ref).collect();
    match names[..] {
        [] => "serves this request".to_owned(),
        _ => format!("matches this request; {} may still refuse it", names.join(", ")),
    }
}
