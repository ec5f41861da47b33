//! The fields that the processor gets.

use sigma_http::Headers;
use sigma_plugin::Context;
use sigma_plugin_kit::envoy::{HeaderMap, HeaderValue};

use crate::config::ForwardRules;

/// Returns fields as a message has them: pseudo-fields first, names in lower case, values as bytes.
pub(crate) fn forwarded(
    pseudo: &[(&str, &[u8])],
    headers: &Headers,
    rules: Option<&ForwardRules>,
) -> HeaderMap {
    let pseudo = pseudo.iter().map(|(name, value)| ((*name).to_owned(), *value));
    let fields = headers
        .iter()
        .map(|(name, value)| (String::from_utf8_lossy(&name.to_ascii_lowercase()).into_owned(), value));
    let headers = pseudo
        .chain(fields)
        .filter(|(name, _)| rules.is_none_or(|rules| rules.forward(name)))
        .map(|(key, value)| HeaderValue { key, value: String::new(), raw_value: value.to_vec() })
        .collect();
    HeaderMap { headers }
}

/// Returns the head of the request.
pub(crate) fn of_request(ctx: &Context, rules: Option<&ForwardRules>) -> HeaderMap {
    let request = &ctx.request;
    let host = ctx.host.as_deref().unwrap_or(request.authority());
    let pseudo: [(&str, &[u8]); 4] = [
        (":method", request.method_token()),
        (":scheme", ctx.scheme().as_bytes()),
        (":authority", host),
        (":path", ctx.outgoing_target()),
    ];
    let mut map = forwarded(&pseudo, &request.headers, rules);
    // The pseudo-field has it.
    map.headers.retain(|field| field.key != "host");
    map
}

/// Returns the head of the response.
pub(crate) fn of_response(ctx: &Context, rules: Option<&ForwardRules>) -> HeaderMap {
    let status = ctx.response.status.to_string();
    forwarded(&[(":status", status.as_bytes())], &ctx.response.headers, rules)
}
