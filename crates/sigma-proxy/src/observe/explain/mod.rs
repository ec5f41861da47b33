//! Why a request gets its route (`sigma routes`), and how the current snapshot would treat it.

mod live;

use sigma_config::Config;
use sigma_http::RequestHead;
use sigma_http::h1::{HeadLimits, ParseError, parse_request};

use crate::exchange;
use crate::route::Explanation;
use crate::snapshot::Snapshot;

pub use live::{Considered, Explained, ExplainedRequest, Met, explain_live};

/// Explains why each route of `config` does or does not match a request, with the route's id; `snapshot` was
/// compiled from all of `config`.
///
/// # Errors
/// Returns an error, which is the broken rule, if the request breaks one.
pub fn explain(
    snapshot: &Snapshot,
    config: &Config,
    method: &str,
    host: &str,
    target: &str,
) -> Result<Vec<(String, Explanation)>, &'static str> {
    let text = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    exchange::explain(&parsed(&text, 1)?, snapshot, config)
}

/// Parses the head of a text that is one request.
fn parsed(text: &str, fields: usize) -> Result<RequestHead, &'static str> {
    let limits = HeadLimits {
        line_bytes: text.len(),
        head_bytes: text.len(),
        fields,
        tolerance: sigma_http::h1::Tolerance::NONE,
    };
    let mut head = RequestHead::default();
    match parse_request(text.as_bytes(), &limits, &mut head) {
        Ok(Some(read)) if read == text.len() => Ok(head),
        Ok(Some(_)) => Err("the target and fields do not form one request"),
        Ok(None) | Err(ParseError::LineTooLong | ParseError::HeadTooLarge) => {
            Err("the target and fields do not form one request")
        }
        Err(ParseError::Invalid(reason)) => Err(reason),
    }
}
