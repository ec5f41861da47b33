//! A processor with HTTP: each message about headers is a POST of JSON, its response the response in JSON.

use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use serde_json::{Value, json};
use sigma_http::{Headers, Method};
use sigma_plugin::outbound::{Call, CallError, ServiceResponse as HttpAnswer};
use sigma_plugin::{Context, Env, Reply, ResponseStep, Step};
use sigma_plugin_kit::envoy::{BoolValue, HeaderMap, HeaderOption, HeaderValue, Struct};

use crate::Shared;
use crate::attributes::values;
use crate::config::HttpService;
use crate::fields::{of_request, of_response};
use crate::messages::{
    BodyMutation, CONTINUE_AND_REPLACE, CommonResponse, FILTER, GrpcStatus, HeaderMutation, HttpStatus,
    ImmediateResponse, Mutation,
};
use crate::session::{Failure, Got};

/// A response of the processor.
#[derive(Debug, PartialEq)]
enum Parsed {
    Headers(CommonResponse),
    Immediate(ImmediateResponse),
}

/// Sends the head of the request.
pub(crate) fn request(
    session: &Shared,
    service: &HttpService,
    upstream: &str,
    ctx: &mut Context,
    env: &Env<'_>,
) -> Step {
    let config = std::sync::Arc::clone(&session.borrow().config);
    if !config.processing_mode.request().headers {
        return Step::Next;
    }
    let headers = of_request(ctx, config.forward_rules.as_ref());
    let attributes = values(&config.request_attributes, ctx, env);
    let message = message("request_headers", headers, !ctx.has_request_body, attributes);
    let call = call(session, service, upstream, message, ctx);
    let session = Rc::clone(session);
    Step::wait(env.outbound.call(call), move |answer, ctx, _| {
        match follow(&session, answer, "request_headers") {
            Ok(common) => crate::request::apply_headers(&session, common, ctx).err().unwrap_or(Step::Next),
            Err(Some(reply)) => reply.into(),
            Err(None) => Step::Next,
        }
    })
}

/// Sends the head of the response.
pub(crate) fn response(
    session: &Shared,
    service: &HttpService,
    upstream: &str,
    ctx: &mut Context,
    env: &Env<'_>,
) -> ResponseStep {
    let config = std::sync::Arc::clone(&session.borrow().config);
    if !config.processing_mode.response().headers || session.borrow().is_over() {
        return ResponseStep::Next;
    }
    session.borrow_mut().response.is_done = true;
    let headers = of_response(ctx, config.forward_rules.as_ref());
    let attributes = values(&config.response_attributes, ctx, env);
    let message = message("response_headers", headers, !ctx.has_response_body, attributes);
    let call = call(session, service, upstream, message, ctx);
    let session = Rc::clone(session);
    ResponseStep::wait(env.outbound.call(call), move |answer, ctx, _| {
        match follow(&session, answer, "response_headers") {
            Ok(common) => {
                let applied = crate::response::apply_headers(&session, common, ctx);
                applied.err().unwrap_or(ResponseStep::Next)
            }
            Err(Some(reply)) => ResponseStep::Replace(Box::new(reply)),
            Err(None) => ResponseStep::Next,
        }
    })
}

fn call(session: &Shared, service: &HttpService, upstream: &str, message: Value, ctx: &Context) -> Call {
    let config = std::sync::Arc::clone(&session.borrow().config);
    let mut headers = Headers::default();
    headers.append("Content-Type", b"application/json");
    Call {
        upstream: upstream.into(),
        method: Method::Post,
        target: service.uri.target.as_bytes().to_vec(),
        host: service.uri.host.clone(),
        headers,
        passes: ctx.passes(),
        body: Some(message.to_string().into_bytes()),
        timeout_ms: config.message_timeout,
        limit: config.answer_bytes(),
    }
}

/// Returns the message about a head.
fn message(part: &str, headers: HeaderMap, is_end: bool, attributes: Struct) -> Value {
    let fields = headers.headers.into_iter();
    let fields: Vec<Value> = fields
        .map(|field| json!({"key": field.key, "raw_value": STANDARD.encode(&field.raw_value)}))
        .collect();
    let mut head = json!({"headers": {"headers": fields}});
    if is_end {
        head["end_of_stream"] = true.into();
    }
    let mut message = json!({});
    message[part] = head;
    if !attributes.fields.is_empty() {
        let named = attributes.fields.iter().map(|(name, value)| (name.clone(), value.json()));
        message["attributes"] = json!({});
        message["attributes"][FILTER] = named.collect();
    }
    message
}

/// Returns the response to a head; else the reply that ends the exchange, or None to continue without the processor.
fn follow(
    session: &Shared,
    answer: Result<HttpAnswer, CallError>,
    part: &str,
) -> Result<CommonResponse, Option<Reply>> {
    let parsed = match answer {
        Err(error) => Err((failure_of(&error), error.0)),
        Ok(answer) if answer.status != 200 => {
            let status = answer.status;
            Err((Failure::Broken, format!("the processor responded with the HTTP status {status}")))
        }
        Ok(answer) => {
            let json = serde_json::from_slice(&answer.body).ok();
            json.and_then(|json| parse(&json, part))
                .ok_or_else(|| (Failure::Broken, "the processor's response is malformed".to_owned()))
        }
    };
    let mut session = session.borrow_mut();
    match parsed {
        Ok(Parsed::Headers(common)) => return Ok(common),
        Ok(Parsed::Immediate(response)) => session.answer_itself(&response),
        Err((failure, reason)) => session.fail(failure, &reason),
    }
    let mut task = std::task::Context::from_waker(std::task::Waker::noop());
    match session.poll(crate::session::Direction::Request, &mut task) {
        std::task::Poll::Ready(Got::Reply(reply)) => Err(Some(reply)),
        _ => Err(None),
    }
}

/// A call without a response in its time says so.
fn failure_of(error: &CallError) -> Failure {
    if error.0.starts_with("no response within") { Failure::Late } else { Failure::Broken }
}

/// Returns a member by its name in the protocol, or by the same name as JSON of Protocol Buffers writes it.
fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    let mut camel = String::with_capacity(name.len());
    for (number, word) in name.split('_').enumerate() {
        match word.chars().next().filter(|_| number > 0) {
            Some(first) => {
                camel.push(first.to_ascii_uppercase());
                camel.push_str(&word[first.len_utf8()..]);
            }
            None => camel.push_str(word),
        }
    }
    value.get(name).or_else(|| value.get(&camel)).filter(|value| !value.is_null())
}

fn parse(json: &Value, part: &str) -> Option<Parsed> {
    if let Some(response) = member(json, "immediate_response") {
        return immediate(response).map(Parsed::Immediate);
    }
    let answer = member(json, part)?;
    let Some(common) = member(answer, "response") else {
        return answer.is_object().then(|| Parsed::Headers(CommonResponse::default()));
    };
    let body_mutation = member(common, "body_mutation").map(body).transpose_none()?;
    Some(Parsed::Headers(CommonResponse {
        status: member(common, "status").map_or(Some(0), status)?,
        header_mutation: member(common, "header_mutation").map(mutation).transpose_none()?,
        body_mutation,
        clear_route_cache: member(common, "clear_route_cache").and_then(Value::as_bool).unwrap_or_default(),
    }))
}

/// Turns an invalid member into a missing response, and a missing member into none.
trait TransposeNone<T> {
    fn transpose_none(self) -> Option<Option<T>>;
}

impl<T> TransposeNone<T> for Option<Option<T>> {
    fn transpose_none(self) -> Option<Option<T>> {
        match self {
            None => Some(None),
            Some(inner) => inner.map(Some),
        }
    }
}

fn status(value: &Value) -> Option<i32> {
    match (value.as_str(), value.as_i64()) {
        (Some("CONTINUE"), _) | (None, Some(0)) => Some(0),
        (Some("CONTINUE_AND_REPLACE"), _) | (None, Some(1)) => Some(CONTINUE_AND_REPLACE),
        _ => None,
    }
}

fn immediate(value: &Value) -> Option<ImmediateResponse> {
    let number = |value: &Value| value.as_i64().and_then(|number| i32::try_from(number).ok());
    let code = member(value, "status").and_then(|status| member(status, "code"));
    let grpc = member(value, "grpc_status").and_then(|grpc| member(grpc, "status"));
    Some(ImmediateResponse {
        status: match code {
            None => None,
            // Names of statuses, as in `Forbidden`, are not known here.
            Some(code) => Some(HttpStatus { code: number(code)? }),
        },
        headers: member(value, "headers").map(mutation).transpose_none()?,
        body: member(value, "body").map(bytes).transpose_none()?.unwrap_or_default(),
        grpc_status: match grpc {
            None => None,
            Some(status) => Some(GrpcStatus { status: u32::try_from(status.as_u64()?).ok()? }),
        },
    })
}

fn body(value: &Value) -> Option<BodyMutation> {
    let mutation = match member(value, "body") {
        Some(body) => Mutation::Body(bytes(body)?),
        None => Mutation::Clear(member(value, "clear_body")?.as_bool()?),
    };
    Some(BodyMutation { mutation: Some(mutation) })
}

fn mutation(value: &Value) -> Option<HeaderMutation> {
    let list = |name| match member(value, name) {
        None => Some(Vec::new()),
        Some(list) => list.as_array().cloned(),
    };
    Some(HeaderMutation {
        set_headers: list("set_headers")?.iter().map(option).collect::<Option<_>>()?,
        remove_headers: list("remove_headers")?
            .iter()
            .map(|name| name.as_str().map(str::to_owned))
            .collect::<Option<_>>()?,
    })
}

fn option(value: &Value) -> Option<HeaderOption> {
    let header = member(value, "header")?;
    let raw_value = member(header, "raw_value").map(bytes).transpose_none()?.unwrap_or_default();
    let text = member(header, "value").and_then(Value::as_str).unwrap_or_default();
    let actions =
        ["APPEND_IF_EXISTS_OR_ADD", "ADD_IF_ABSENT", "OVERWRITE_IF_EXISTS_OR_ADD", "OVERWRITE_IF_EXISTS"];
    let append_action = match member(value, "append_action") {
        None => 0,
        Some(Value::String(word)) => actions.iter().position(|action| action == word)? as i32,
        Some(number) => i32::try_from(number.as_i64()?).ok()?,
    };
    Some(HeaderOption {
        header: Some(HeaderValue {
            key: member(header, "key")?.as_str()?.to_owned(),
            value: text.to_owned(),
            raw_value,
        }),
        append: member(value, "append").and_then(Value::as_bool).map(|value| BoolValue { value }),
        append_action,
        keep_empty_value: member(value, "keep_empty_value").and_then(Value::as_bool).unwrap_or_default(),
    })
}

/// Returns bytes in base64, of either alphabet.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    let text = value.as_str()?;
    STANDARD.decode(text).or_else(|_| URL_SAFE.decode(text)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_json_with_names_of_the_protocol() {
        let field = HeaderValue { key: ":path".into(), raw_value: b"/a".to_vec(), ..HeaderValue::default() };
        let headers = HeaderMap { headers: vec![field] };
        assert_eq!(
            message("request_headers", headers, true, Struct::default()),
            json!({"request_headers": {
                "headers": {"headers": [{"key": ":path", "raw_value": "L2E="}]}, "end_of_stream": true}})
        );
    }

    #[test]
    fn answers_in_json() {
        let set = |append_action| HeaderMutation {
            set_headers: vec![HeaderOption {
                header: Some(HeaderValue {
                    key: "a".into(),
                    raw_value: b"b".to_vec(),
                    ..HeaderValue::default()
                }),
                append_action,
                ..HeaderOption::default()
            }],
            remove_headers: vec!["c".into()],
        };
        let common =
            |action| CommonResponse { header_mutation: Some(set(action)), ..CommonResponse::default() };
        let check = |json: Value, expected: Option<Parsed>| {
            assert_eq!(parse(&json, "request_headers"), expected, "{json}");
        };
        let header = json!({"key": "a", "raw_value": "Yg=="});
        let snake = json!({"set_headers": [{"header": header, "append_action": "ADD_IF_ABSENT"}], "remove_headers": ["c"]});
        check(
            json!({"request_headers": {"response": {"header_mutation": snake}}}),
            Some(Parsed::Headers(common(1))),
        );
        let header = json!({"key": "a", "rawValue": "Yg=="});
        let camel = json!({"setHeaders": [{"header": header}], "removeHeaders": ["c"]});
        check(
            json!({"requestHeaders": {"response": {"headerMutation": camel}}}),
            Some(Parsed::Headers(common(0))),
        );
        check(json!({"request_headers": {}}), Some(Parsed::Headers(CommonResponse::default())));
        check(
            json!({"immediate_response": {"status": {"code": 403}, "body": "bm8="}}),
            Some(Parsed::Immediate(ImmediateResponse {
                status: Some(HttpStatus { code: 403 }),
                body: b"no".to_vec(),
                ..ImmediateResponse::default()
            })),
        );
        for wrong in [
            json!({}),
            json!([]),
            json!("x"),
            json!({"response_headers": {}}),
            json!({"request_headers": 1}),
            json!({"request_headers": {"response": {"status": "OTHER"}}}),
            json!({"request_headers": {"response": {"header_mutation": {"set_headers": 1}}}}),
            json!({"request_headers": {"response": {"header_mutation": {"set_headers": [{}]}}}}),
            json!({"immediate_response": {"status": {"code": "x"}}}),
        ] {
            check(wrong, None);
        }
    }
}
