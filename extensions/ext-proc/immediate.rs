//! Responses by the processor itself.

use sigma_plugin::Reply;
use sigma_plugin_kit::envoy::{BoolValue, HeaderOption, HeaderValue};
use sigma_plugin_kit::fields::{frames, is_name};

use crate::messages::{HeaderMutation, HttpHeaders, HttpStatus, ImmediateResponse};
use crate::rules::{Invalid, MutationRules};

/// Largest number of fields: more than any head has.
const FIELDS_MAX: usize = 1000;

/// Returns the reply, and the number of fields that are not permitted.
///
/// # Errors
/// Returns an error if the response is invalid.
pub(crate) fn reply(response: &ImmediateResponse, rules: &MutationRules) -> Result<(Reply, u64), Invalid> {
    let status = match response.status.map_or(0, |status| status.code) {
        0 => 200,
        code => u16::try_from(code)
            .ok()
            .filter(|code| (200..=599).contains(code))
            .ok_or(Invalid("the processor responds with an invalid status"))?,
    };
    let mut reply =
        Reply::new(status).because("the external processor responded").text(response.body.clone());
    let mut rejected = 0;
    let options = response.headers.iter().flat_map(|mutation| &mutation.set_headers);
    for (number, option) in options.enumerate() {
        let header = option.header.clone().unwrap_or_default();
        let value = if header.raw_value.is_empty() { header.value.into_bytes() } else { header.raw_value };
        let name = header.key.to_ascii_lowercase();
        let is_torn = value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
        if number >= FIELDS_MAX || is_torn || !is_name(name.strip_prefix(':').unwrap_or(&name)) {
            return Err(Invalid("the processor responds with an invalid field"));
        }
        // A pseudo-field is no name.
        if !is_name(&name) || frames(&name) || rules.forbids_in_reply(&name) {
            rejected += 1;
            continue;
        }
        // Cookies are several fields by nature.
        let appends = option.append.is_some_and(|append| append.value) || name == "set-cookie";
        if !appends {
            reply.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
        }
        reply = reply.header(name, value);
    }
    if let Some(grpc) = response.grpc_status {
        reply = reply.header("grpc-status", grpc.status.to_string());
    }
    Ok((reply, rejected))
}

/// Returns the reply of a response in pieces, without its body, and the number of fields that are not permitted.
///
/// # Errors
/// Returns an error if the head is invalid.
pub(crate) fn head(headers: &HttpHeaders, rules: &MutationRules) -> Result<(Reply, u64), Invalid> {
    let all = headers.headers.iter().flat_map(|map| &map.headers);
    let (pseudo, fields): (Vec<_>, Vec<_>) = all.partition(|field| field.key.starts_with(':'));
    let text = |field: &HeaderValue| match field.raw_value.is_empty() {
        true => field.value.clone(),
        false => String::from_utf8_lossy(&field.raw_value).into_owned(),
    };
    let status = pseudo.iter().find(|field| field.key == ":status");
    let code = status.and_then(|field| text(field).parse().ok());
    let code = code.ok_or(Invalid("the processor streams a response without a valid :status"))?;
    let option = |field: &&HeaderValue| HeaderOption {
        header: Some((*field).clone()),
        append: Some(BoolValue { value: true }),
        ..HeaderOption::default()
    };
    let headers = HeaderMutation { set_headers: fields.iter().map(option).collect(), remove_headers: vec![] };
    let response = ImmediateResponse {
        status: Some(HttpStatus { code }),
        headers: Some(headers),
        ..ImmediateResponse::default()
    };
    let (made, rejected) = reply(&response, rules)?;
    Ok((Reply { body: None, ..made }, rejected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::GrpcStatus;

    fn response(code: i32, fields: &[(&str, &str)]) -> ImmediateResponse {
        let option = |(key, value): &(&str, &str)| HeaderOption {
            header: Some(HeaderValue { key: (*key).into(), value: (*value).into(), raw_value: Vec::new() }),
            ..HeaderOption::default()
        };
        let headers =
            HeaderMutation { set_headers: fields.iter().map(option).collect(), remove_headers: vec![] };
        let status = Some(HttpStatus { code });
        ImmediateResponse { status, headers: Some(headers), body: b"no".into(), grpc_status: None }
    }

    #[test]
    fn replies_of_the_processor() {
        let rules = MutationRules::default();
        let check = |code, fields: &[(&str, &str)], expected: Option<(u16, &[&str], u64)>| {
            let made = reply(&response(code, fields), &rules).ok();
            let names =
                |reply: &Reply| reply.headers.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
            let made = made.map(|(reply, rejected)| (reply.status, names(&reply), rejected));
            let expected = expected.map(|(status, names, rejected)| {
                (status, names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), rejected)
            });
            assert_eq!(made, expected, "{code} {fields:?}");
        };
        check(403, &[("X-A", "1"), ("x-a", "2")], Some((403, &["x-a"], 0)));
        check(0, &[("set-cookie", "a"), ("set-cookie", "b")], Some((200, &["set-cookie", "set-cookie"], 0)));
        check(403, &[("content-length", "9"), (":status", "200"), ("x-envoy-a", "1")], Some((403, &[], 3)));
        check(101, &[], None);
        check(999, &[], None);
        check(403, &[("a b", "1")], None);
        check(403, &[("a", "1\r\nb: 2")], None);
        let grpc = ImmediateResponse { grpc_status: Some(GrpcStatus { status: 7 }), ..response(200, &[]) };
        assert_eq!(reply(&grpc, &rules).unwrap().0.headers, [("grpc-status".into(), b"7".to_vec())]);
    }
}
