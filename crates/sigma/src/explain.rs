//! `sigma explain REASON`: the meaning of a word of the table of reasons, and the remedy.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use sigma_http::ReasonRow;

use crate::output::printed;

/// Prints the rows of a word, or all rows with a status.
///
/// # Errors
/// Returns an error, with the nearest words, if no row has it.
pub(crate) fn execute(word: &str) -> Result<ExitCode> {
    explained(word).map(|text| printed(text.as_bytes()))
}

fn explained(word: &str) -> Result<String> {
    // The name of a plugin may follow.
    let wanted = word.split(':').next().unwrap_or_default().trim().to_ascii_lowercase();
    let number: Option<u16> = wanted.parse().ok();
    let mut text = String::new();
    let is_wanted =
        |reason: &&ReasonRow| reason.word == wanted || (number.is_some() && reason.status == number);
    for reason in ReasonRow::all().filter(is_wanted) {
        let status = reason.status.map(|status| format!(" (status {status})")).unwrap_or_default();
        let _ = writeln!(
            text,
            "{}{status}\n  {}\n  Remedy: {}",
            reason.word,
            reason.meaning,
            reason.plain_remedy()
        );
    }
    match text.is_empty() {
        false => Ok(text),
        true => Err(anyhow!(
            "unknown reason `{word}`; similar reasons: {}; docs/troubleshooting.md lists all",
            nearest(&wanted).join(", ")
        )),
    }
}

/// The three words that are most like this one.
fn nearest(word: &str) -> Vec<&'static str> {
    // A long word is like none, and the distance takes quadratic time.
    let word: String = word.chars().take(64).collect();
    let mut words: Vec<&str> = ReasonRow::all().map(|reason| reason.word).collect();
    words.sort_unstable();
    words.dedup();
    words.sort_by_key(|known| (!known.contains(&*word), strsim::damerau_levenshtein(&word, known)));
    words.truncate(3);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_explained() {
        for reason in ReasonRow::all() {
            let text = explained(reason.word).unwrap();
            assert!(text.contains(reason.meaning) && !text.contains("]("), "{text}");
        }
        let text = explained("connection_refused").unwrap();
        assert!(text.starts_with("connection_refused (status 502)\n  The node refused"), "{text}");
        let statuses = explained("destination_unavailable").unwrap();
        assert!(statuses.contains("(status 502)") && statuses.contains("(status 503)"), "{statuses}");
        let statuses = explained("503").unwrap();
        assert!(statuses.contains("upstream_overloaded (status 503)\n"), "{statuses}");
        assert!(!statuses.contains("(status 502)"), "{statuses}");
        assert_eq!(explained("plugin:limit-count").unwrap(), explained("plugin").unwrap());
    }

    #[test]
    fn unknown_words_have_near_ones() {
        let error = explained("conection_refused").unwrap_err().to_string();
        assert!(
            error.contains("unknown reason `conection_refused`; similar reasons: connection_refused"),
            "{error}"
        );
        let error = explained("overloaded").unwrap_err().to_string();
        assert!(error.contains("upstream_overloaded") && error.contains("gateway_overloaded"), "{error}");
    }
}
