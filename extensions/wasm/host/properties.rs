//! Properties, in Envoy's encoding: texts as they are, numbers in eight bytes, truth values in one, fields as a list.

use sigma_http::{HeaderId, Headers};
use sigma_plugin::system::{Host, System};
use sigma_schema::expr::{VarName, VarValue, Variables};
use wasmtime::Linker;

use super::guest::{GuestPointers, Span};
use super::{Guest, Outcome, Status, function, pairs};
use crate::current::{self, Current};
use crate::state::State;

/// The most properties that a module sets in one exchange, and their bytes: a module must not use an exchange as a
/// store.
const SET_MAX: usize = 64;
const SET_BYTES: usize = 64 << 10;

/// The longest name.
const NAME_BYTES: u32 = 4096;

fn number(value: i64) -> Option<Vec<u8>> {
    Some(value.to_le_bytes().to_vec())
}

fn text(value: impl AsRef<[u8]>) -> Option<Vec<u8>> {
    Some(value.as_ref().to_vec())
}

fn fields(headers: &Headers) -> Vec<u8> {
    let lowered: Vec<(Vec<u8>, &[u8])> =
        headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    pairs::encode(lowered.iter().map(|(name, value)| (&name[..], *value)))
}

/// Returns a property by its segments.
fn property(segments: &[&[u8]], state: &State) -> Option<Vec<u8>> {
    match segments {
        [b"plugin_root_id"] => text(&*state.vm.root_id),
        [b"plugin_name"] => text(&*state.vm.name),
        [b"plugin_vm_id"] => text(&*state.vm.vm_id),
        // Inbound.
        [b"listener_direction"] => number(1),
        _ => current::with(state.effective, |current| of_exchange(segments, current)).flatten(),
    }
}

fn of_exchange(segments: &[&[u8]], current: &Current) -> Option<Vec<u8>> {
    match segments {
        [b"request" | b"response", ..] if current.hook.is_tcp() => None,
        [b"request", rest @ ..] => of_request(rest, current),
        [b"response", rest @ ..] if current.hook.has_response() => of_response(rest, current),
        [b"source" | b"destination" | b"connection", ..] => of_connection(segments, current),
        [b"upstream", rest @ ..] => {
            let attempt = current.ctx.record.attempts.last()?;
            match rest {
                [b"address"] => text(attempt.addr.to_string()),
                _ => None,
            }
        }
        [b"route_name"] | [b"xds", b"route_name"] => {
            let route = current.ctx.route.as_deref()?;
            text(route.name.as_deref().unwrap_or(&route.id))
        }
        [b"cluster_name"] | [b"xds", b"cluster_name"] => text(current.ctx.upstream.as_deref()?),
        [name] => variable(name, current),
        _ => None,
    }
}

fn of_request(rest: &[&[u8]], current: &Current) -> Option<Vec<u8>> {
    let (ctx, request) = (&current.ctx, &current.ctx.request);
    match rest {
        [b"path"] => text(ctx.outgoing_target()),
        [b"url_path"] => text(ctx.outgoing_target().split(|byte| *byte == b'?').next()?),
        [b"query"] => text(ctx.outgoing_query().unwrap_or_default()),
        [b"host"] => text(ctx.host.as_deref().unwrap_or(request.authority())),
        [b"scheme"] => text(ctx.scheme()),
        [b"method"] => text(request.method_token()),
        [b"protocol"] => text(request.version.as_str()),
        [b"id"] => text(ctx.request_id_bytes()),
        [b"referer"] => text(request.headers.find(b"referer")?),
        [b"useragent"] => text(request.headers.get(HeaderId::UserAgent)?),
        [b"headers"] => Some(fields(&request.headers)),
        [b"headers", name] => text(request.headers.find(name)?),
        [b"size"] => {
            let length = request.headers.get(HeaderId::ContentLength)?;
            number(std::str::from_utf8(length).ok()?.parse().ok()?)
        }
        [b"time"] => number(i64::try_from(now()).ok()?),
        [b"duration"] => number(i64::try_from(ctx.record.elapsed()?.as_nanos()).ok()?),
        _ => None,
    }
}

fn of_response(rest: &[&[u8]], current: &Current) -> Option<Vec<u8>> {
    let response = &current.ctx.response;
    match rest {
        [b"code"] => number(response.status.into()),
        [b"headers"] => Some(fields(&response.headers)),
        [b"headers", name] => text(response.headers.find(name)?),
        _ => None,
    }
}

fn of_connection(segments: &[&[u8]], current: &Current) -> Option<Vec<u8>> {
    let (ctx, client) = (&current.ctx, &current.ctx.client);
    let tls = client.tls.as_deref();
    let verified = tls.filter(|tls| tls.client_verify == "SUCCESS");
    match segments {
        [b"source", b"address"] => match client.addr {
            Some(addr) => text(std::net::SocketAddr::new(addr, client.port).to_string()),
            None => text(ctx.remote_addr()),
        },
        [b"source", b"port"] => number(client.port.into()),
        [b"destination", b"address"] => text(client.local?.to_string()),
        [b"destination", b"port"] => number(client.local?.port().into()),
        [b"connection", b"id"] => Some(client.connection.to_le_bytes().to_vec()),
        [b"connection", b"mtls"] => Some(vec![u8::from(verified.is_some())]),
        [b"connection", b"requested_server_name"] => text(tls?.server_name.as_deref()?),
        [b"connection", b"tls_version"] => text(tls?.protocol),
        [b"connection", b"subject_peer_certificate"] => text(verified?.client_subject.as_deref()?),
        _ => None,
    }
}

/// Returns the variable of this name, as APISIX's modules read it.
fn variable(name: &[u8], current: &Current) -> Option<Vec<u8>> {
    let name = VarName::parse(std::str::from_utf8(name).ok()?);
    match current.ctx.get(&name)? {
        VarValue::Text(text) => Some(text.into_owned()),
        _ => None,
    }
}

/// Nanoseconds since 1970.
pub(super) fn now() -> u128 {
    Host.now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos()
}

fn get(guest: &mut Guest<'_>, path: Span, place: GuestPointers) -> Outcome {
    if path.length > NAME_BYTES {
        return Err(Status::BadArgument.into());
    }
    let path = guest.read(path)?;
    let state = guest.state();
    let set = state.streams.get(&state.effective).and_then(|stream| stream.properties.get(&path));
    let value = match set {
        Some(value) => value.clone(),
        None => {
            let segments: Vec<&[u8]> = path.split(|byte| *byte == 0).collect();
            property(&segments, state).ok_or(Status::NotFound)?
        }
    };
    guest.give(&value, place)
}

fn set(guest: &mut Guest<'_>, path: Span, value: Span) -> Outcome {
    if path.length > NAME_BYTES || value.length as usize > SET_BYTES {
        return Err(Status::BadArgument.into());
    }
    let (path, value) = (guest.read(path)?, guest.read(value)?);
    let state = guest.state();
    let stream = state.streams.get_mut(&state.effective).ok_or(Status::BadArgument)?;
    let known: usize = stream.properties.iter().map(|(name, value)| name.len() + value.len()).sum();
    let is_new = !stream.properties.contains_key(&path);
    if is_new && stream.properties.len() >= SET_MAX || known + path.len() + value.len() > SET_BYTES {
        return Err(Status::InternalFailure.into());
    }
    stream.properties.insert(path, value);
    Ok(())
}

pub(super) fn register(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    function!(linker, "proxy_get_property", |guest, at: u32, length: u32, data: u32, size: u32| {
        get(guest, Span { at, length }, GuestPointers { data, size })
    });
    function!(linker, "proxy_set_property", |guest, at: u32, length: u32, value: u32, n: u32| {
        set(guest, Span { at, length }, Span { at: value, length: n })
    });
    Ok(())
}
