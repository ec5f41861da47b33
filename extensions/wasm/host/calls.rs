//! Calls to services.

use sigma_http::is_authority;
use sigma_plugin_kit::fields::frames;
use tokio::sync::mpsc;
use wasmtime::Linker;

use super::guest::{GuestPointers, Span};
use super::{Guest, Outcome, Status, function, is_sound, pairs};
use crate::current;
use crate::state::{OpenCall, Outgoing, Pairs, State};

/// A call as the module describes it.
struct DescribedCall {
    upstream: Vec<u8>,
    headers: Pairs,
    body: Vec<u8>,
    timeout_ms: u64,
}

/// Begins a call; returns its id.
fn begin(state: &mut State, wanted: DescribedCall) -> Result<u32, Status> {
    let service = state.vm.service(&wanted.upstream, false).ok_or(Status::BadArgument)?;
    let (upstream, own_host) = (service.upstream.clone(), service.host.clone());
    let mut headers = wanted.headers;
    let mut pseudo = |name: &[u8]| {
        let at = headers.iter().position(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(headers.remove(at).1)
    };
    let (method, path, authority) = (pseudo(b":method"), pseudo(b":path"), pseudo(b":authority"));
    let method = method.filter(|method| is_token(method)).ok_or(Status::BadArgument)?;
    let target = path.filter(|path| is_target(path)).ok_or(Status::BadArgument)?;
    // An empty one is the name of the service.
    let authority = authority.map(|host| if host.is_empty() { own_host.as_bytes().to_vec() } else { host });
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
    let wanted = DescribedCall {
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
    /// The message; None for a stream.
    message: Option<Span>,
    timeout_ms: u32,
}

/// Messages of a stream that wait for the service.
const MESSAGES_MAX: usize = 16;

/// Begins a call by gRPC with one message and one in the response, or a stream.
fn grpc(guest: &mut Guest<'_>, call: &GrpcCall, out: u32) -> Outcome {
    let length = call.message.map_or(0, |message| message.length as usize);
    if length > guest.state().vm.settings.body_bytes {
        return Err(Status::BadArgument.into());
    }
    let service = guest.read(call.service)?;
    let (name, method) = (guest.read(call.name)?, guest.read(call.method)?);
    let target = [&b"/"[..], &name, b"/", &method].concat();
    let headers = guest.with(call.metadata, pairs::decode)?.ok_or(Status::BadArgument)?;
    let body = call.message.map_or(Ok(Vec::new()), |message| guest.read(message))?;
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
    let (sender, messages) = match call.message {
        Some(_) => (None, None),
        None => {
            let (sender, messages) = mpsc::channel(MESSAGES_MAX);
            (Some(sender), Some(messages))
        }
    };
    let timeout_ms = call.timeout_ms.into();
    let made =
        Outgoing { upstream, target, host, headers, body, timeout_ms, messages, ..Outgoing::default() };
    let id = add(state, made)?;
    let open = OpenCall { context: state.effective, messages: sender, task: None };
    state.calls.open.insert(id, open);
    guest.write_u32(out, id)
}

/// Sends a message of a stream; the last one ends this side.
fn send(guest: &mut Guest<'_>, id: u32, message: Span, is_end: bool) -> Outcome {
    if message.length as usize > guest.state().vm.settings.body_bytes {
        return Err(Status::BadArgument.into());
    }
    let message = guest.read(message)?;
    let open = guest.state().calls.open.get_mut(&id).ok_or(Status::NotFound)?;
    let sender = open.messages.as_ref().ok_or(Status::BadArgument)?;
    // The service does not read its messages, or has ended the call.
    sender.try_send(message).map_err(|_| Status::InternalFailure)?;
    if is_end {
        open.messages = None;
    }
    Ok(())
}

/// Cancels a call.
fn cancel(state: &mut State, id: u32) -> Outcome {
    if state.end_call(id) { Ok(()) } else { Err(Status::NotFound.into()) }
}

/// Ends this side of a stream, or cancels a call with one message.
fn close(state: &mut State, id: u32) -> Outcome {
    let open = state.calls.open.get_mut(&id).ok_or(Status::NotFound)?;
    match open.messages.take() {
        Some(_) => Ok(()),
        None => cancel(state, id),
    }
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
                                          _at: u32,
                                          _trailers: u32,
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
            message: Some(Span { at: message, length: b }),
            timeout_ms: ms,
        };
        grpc(guest, &call, out)
    });
    streams(linker)?;
    Ok(())
}

/// Registers functions of streams by gRPC.
fn streams(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    function!(linker, "proxy_grpc_stream", |guest,
                                            at: u32,
                                            n: u32,
                                            name: u32,
                                            s: u32,
                                            method: u32,
                                            m: u32,
                                            pairs: u32,
                                            p: u32,
                                            out: u32| {
        let call = GrpcCall {
            service: Span { at, length: n },
            name: Span { at: name, length: s },
            method: Span { at: method, length: m },
            metadata: Span { at: pairs, length: p },
            message: None,
            timeout_ms: 0,
        };
        grpc(guest, &call, out)
    });
    function!(linker, "proxy_grpc_send", |guest, id: u32, at: u32, length: u32, end: u32| {
        send(guest, id, Span { at, length }, end != 0)
    });
    function!(linker, "proxy_grpc_cancel", |guest, id: u32| cancel(guest.state(), id));
    function!(linker, "proxy_grpc_close", |guest, id: u32| close(guest.state(), id));
    function!(linker, "proxy_get_status", |guest, code: u32, data: u32, size: u32| {
        let end = guest.state().grpc_end.clone();
        guest.write_u32(code, end.code)?;
        guest.give(&end.message, GuestPointers { data, size })
    });
    Ok(())
}
