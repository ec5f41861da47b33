//! Calls to services.

use sigma_http::is_authority;
use sigma_plugin_kit::fields::frames;
use wasmtime::Linker;

use super::guest::{Place, Span};
use super::{Guest, Outcome, Status, function, is_sound, pairs};
use crate::current;
use crate::state::{Outgoing, Pairs, State};

/// A call as the module describes it.
struct Wanted {
    upstream: Vec<u8>,
    headers: Pairs,
    body: Vec<u8>,
    timeout_ms: u64,
}

/// Begins a call; returns its id.
fn begin(state: &mut State, wanted: Wanted) -> Result<u32, Status> {
    let upstream = state.vm.service(&wanted.upstream, false).ok_or(Status::BadArgument)?.upstream.clone();
    let mut headers = wanted.headers;
    let mut pseudo = |name: &[u8]| {
        let at = headers.iter().position(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(headers.remove(at).1)
    };
    let (method, path, authority) = (pseudo(b":method"), pseudo(b":path"), pseudo(b":authority"));
    let method = method.filter(|method| is_token(method)).ok_or(Status::BadArgument)?;
    let target = path.filter(|path| is_target(path)).ok_or(Status::BadArgument)?;
    let host = authority.filter(|host| is_authority(host)).and_then(|host| String::from_utf8(host).ok());
    let host = host.ok_or(Status::BadArgument)?;
    headers.retain(|(name, _)| !name.starts_with(b":") && !is_framing(name));
    let is_field = |(name, value): &(Vec<u8>, Vec<u8>)| {
        std::str::from_utf8(name).is_ok_and(|name| is_sound(&name.to_ascii_lowercase(), value))
    };
    if !headers.iter().all(is_field) {
        return Err(Status::BadArgument);
    }
    let (method, timeout_ms) = (Some(method), wanted.timeout_ms);
    let body = wanted.body;
    add(state, Outgoing { upstream, method, target, host, headers, body, timeout_ms, ..Outgoing::default() })
}

/// Adds a call; returns its id.
fn add(state: &mut State, call: Outgoing) -> Result<u32, Status> {
    let (context, settings) = (state.effective, state.vm.settings.clone());
    let waiting = state.waiting_calls(context).ok_or(Status::BadArgument)?;
    if *waiting >= settings.calls {
        return Err(Status::InternalFailure);
    }
    *waiting += 1;
    let timeout_ms = match call.timeout_ms {
        0 => settings.call_timeout_ms,
        timeout => timeout.min(settings.call_timeout_ms),
    };
    let passes = current::with(context, |current| current.ctx.passes()).unwrap_or_default();
    state.calls.last = state.calls.last.wrapping_add(1);
    let id = state.calls.last;
    state.calls.begun.push(Outgoing { id, context, passes, timeout_ms, ..call });
    Ok(id)
}

fn is_token(method: &[u8]) -> bool {
    method != b"CONNECT" && std::str::from_utf8(method).is_ok_and(sigma_plugin_kit::fields::is_name)
}

fn is_target(path: &[u8]) -> bool {
    path.starts_with(b"/") && path.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#')
}

/// Returns true for a field that the gateway sets itself.
fn is_framing(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| {
        let name = name.to_ascii_lowercase();
        frames(&name) || matches!(&*name, "host" | "keep-alive" | "upgrade" | "te" | "expect")
    })
}

fn http(
    guest: &mut Guest<'_>,
    upstream: Span,
    headers: Span,
    body: Span,
    timeout_ms: u32,
    out: u32,
) -> Outcome {
    if body.length as usize > guest.state().vm.settings.body_bytes {
        return Err(Status::BadArgument.into());
    }
    let wanted = Wanted {
        upstream: guest.read(upstream)?,
        headers: guest.with(headers, pairs::decode)?.ok_or(Status::BadArgument)?,
        body: guest.read(body)?,
        timeout_ms: timeout_ms.into(),
    };
    // A pointer that is not valid begins no call.
    guest.write_u32(out, 0)?;
    let id = begin(guest.state(), wanted)?;
    guest.write_u32(out, id)
}

/// A call by gRPC as the module describes it.
struct GrpcCall {
    service: Span,
    name: Span,
    method: Span,
    metadata: Span,
    message: Span,
    timeout_ms: u32,
}

/// Begins a call by gRPC with one message, and one in the response.
fn grpc(guest: &mut Guest<'_>, call: &GrpcCall, out: u32) -> Outcome {
    if call.message.length as usize > guest.state().vm.settings.body_bytes {
        return Err(Status::BadArgument.into());
    }
    let service = guest.read(call.service)?;
    let (name, method) = (guest.read(call.name)?, guest.read(call.method)?);
    let target = [&b"/"[..], &name, b"/", &method].concat();
    let headers = guest.with(call.metadata, pairs::decode)?.ok_or(Status::BadArgument)?;
    let body = guest.read(call.message)?;
    // A pointer that is not valid begins no call.
    guest.write_u32(out, 0)?;
    let state = guest.state();
    let vm = &state.vm;
    let found = vm.service(&service, true).or_else(|| vm.service(cluster_of(&service)?, true));
    let known = found.ok_or(Status::BadArgument)?;
    let (upstream, host) = (known.upstream.clone(), known.host.to_string());
    let is_field = |(name, value): &(Vec<u8>, Vec<u8>)| {
        std::str::from_utf8(name).is_ok_and(|name| is_sound(name, value)) && !is_framing(name)
    };
    if !is_target(&target) || !headers.iter().all(is_field) {
        return Err(Status::BadArgument.into());
    }
    let timeout_ms = call.timeout_ms.into();
    let id =
        add(state, Outgoing { upstream, target, host, headers, body, timeout_ms, ..Outgoing::default() })?;
    guest.write_u32(out, id)
}

/// Returns the name of the cluster in a serialised `GrpcService`: field 1 of its field 1.
fn cluster_of(service: &[u8]) -> Option<&[u8]> {
    let field = |bytes: &[u8]| match bytes {
        // The length has one byte, or two.
        [0x0a, length @ ..0x80, ..] => Some(2..2 + usize::from(*length)),
        [0x0a, low, high @ ..0x80, ..] => {
            let length = usize::from(low & 0x7f) | usize::from(*high) << 7;
            Some(3..3 + length)
        }
        _ => None,
    };
    let envoy = service.get(field(service)?)?;
    envoy.get(field(envoy)?)
}

pub(super) fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    // Trailers of a call are not sent.
    function!(linker, "proxy_http_call", |guest,
                                          name: u32,
                                          n: u32,
                                          headers: u32,
                                          h: u32,
                                          body: u32,
                                          b: u32,
                                          _t: u32,
                                          _n: u32,
                                          ms: u32,
                                          out: u32| {
        let (name, headers) = (Span { at: name, length: n }, Span { at: headers, length: h });
        http(guest, name, headers, Span { at: body, length: b }, ms, out)
    });
    function!(linker, "proxy_grpc_call", |guest,
                                          at: u32,
                                          n: u32,
                                          name: u32,
                                          s: u32,
                                          method: u32,
                                          m: u32,
                                          pairs: u32,
                                          p: u32,
                                          message: u32,
                                          b: u32,
                                          ms: u32,
                                          out: u32| {
        let call = GrpcCall {
            service: Span { at, length: n },
            name: Span { at: name, length: s },
            method: Span { at: method, length: m },
            metadata: Span { at: pairs, length: p },
            message: Span { at: message, length: b },
            timeout_ms: ms,
        };
        grpc(guest, &call, out)
    });
    function!(linker, "proxy_grpc_stream", |_guest,
                                            _a: u32,
                                            _b: u32,
                                            _c: u32,
                                            _d: u32,
                                            _e: u32,
                                            _f: u32,
                                            _g: u32,
                                            _h: u32,
                                            _i: u32| {
        Err(Status::Unimplemented.into())
    });
    function!(linker, "proxy_grpc_send", |_guest, _id: u32, _at: u32, _n: u32, _end: u32| {
        Err(Status::Unimplemented.into())
    });
    function!(linker, "proxy_grpc_cancel", |_guest, _id: u32| Err(Status::Unimplemented.into()));
    function!(linker, "proxy_grpc_close", |_guest, _id: u32| Err(Status::Unimplemented.into()));
    function!(linker, "proxy_get_status", |guest, code: u32, data: u32, size: u32| {
        let status = guest.state().grpc_status;
        guest.write_u32(code, status)?;
        guest.give(b"", Place { data, size })
    });
    function!(
        linker,
        "proxy_call_foreign_function",
        |_guest, _name: u32, _n: u32, _at: u32, _m: u32, _data: u32, _size: u32| Err(Status::NotFound.into())
    );
    Ok(())
}
