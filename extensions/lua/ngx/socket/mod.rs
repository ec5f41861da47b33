//! `ngx.socket`: streams of bytes to other hosts.

mod connected;
mod held;
mod pattern;
mod pool;

use std::cell::OnceCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use mlua::{AnyUserData, Function, Lua, MultiValue, Table, Value};
use sigma_plugin::{Local, Node};

use super::output::flatten;
use crate::engine::arguments::{Arguments, Results, failed, one, several, type_name};
use crate::engine::host::{Host, Stage, Wait};
use crate::engine::outbound::Outbound;
use crate::engine::settings::Settings;
use connected::{Operations, Socket, Timeouts};
use held::{HeldBytes, TOO_MANY};
use pattern::{ReadPattern, Searched};
use pool::Pools;

/// nginx's `lua_socket_pool_size`.
const POOL_SIZE: usize = 30;

/// nginx's `lua_socket_keepalive_timeout`.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The longest time of a connection in a pool; also of one without a limit.
const LONGEST: Duration = Duration::from_secs(3600);

/// The longest text that `receiveuntil` searches for.
const PATTERN_BYTES: usize = 4096;

/// The sockets of the scripts of one state.
pub(super) struct Sockets {
    outbound: Outbound,
    pools: Rc<Pools>,
    most_bytes: usize,
    held: HeldBytes,
    /// The worker; set by the first socket.
    worker: OnceCell<(Arc<Node>, Weak<Local>)>,
    /// The metatable of sockets.
    metatable: Table,
}

impl Sockets {
    fn worker(&self) -> Option<(Arc<Node>, Rc<Local>)> {
        let (node, local) = self.worker.get()?;
        Some((Arc::clone(node), local.upgrade()?))
    }
}

/// The members of `ngx.socket`.
pub(super) fn group(lua: &Lua, host: &Rc<Host>, settings: &Settings) -> mlua::Result<Table> {
    let methods = lua.create_table()?;
    let metatable = lua.create_table()?;
    metatable.raw_set("__index", &methods)?;
    metatable.raw_set("__metatable", false)?;
    let sockets = Rc::new(Sockets {
        outbound: Outbound::new(settings.allowed_networks.clone(), settings.sockets, host.open_sockets()),
        pools: Rc::default(),
        most_bytes: settings.socket_bytes,
        held: HeldBytes::new(settings.memory_bytes),
        worker: OnceCell::new(),
        metatable,
    });
    connecting(lua, host, &methods)?;
    transferring(lua, host, &methods)?;
    ending(lua, host, &methods)?;
    let group = lua.create_table()?;
    for name in ["tcp", "stream"] {
        let sockets = Rc::clone(&sockets);
        host.function(lua, &group, name, move |host, arguments| {
            one(arguments.lua(), made(&sockets, host, arguments.lua())?.0)
        })?;
    }
    host.waiting_function(lua, &group, "connect", move |host, arguments| {
        let (object, socket) = made(&sockets, host, arguments.lua())?;
        connect(host, &arguments, 1, socket, Value::Table(object))
    })?;
    host.function(lua, &group, "udp", |_, arguments| {
        failed(arguments.lua(), "scripts cannot use datagrams")
    })?;
    Ok(group)
}

/// Makes a socket: the table that scripts get, and the socket behind it.
fn made(sockets: &Rc<Sockets>, host: &Host, lua: &Lua) -> Result<(Table, Rc<Socket>), String> {
    if !matches!(host.stage(), Stage::Rewrite | Stage::Access | Stage::Timer) {
        return Err(host.stage().disabled());
    }
    if let Some(worker) = host.worker() {
        sockets.worker.get_or_init(|| (Arc::clone(&worker.node), Weak::clone(&worker.local)));
    }
    let socket = Rc::new(Socket::new(sockets, host.lifetime()));
    let object = || {
        let object = lua.create_table()?;
        object.raw_set(1, lua.create_any_userdata(Rc::clone(&socket))?)?;
        object.set_metatable(Some(sockets.metatable.clone()))?;
        Ok(object)
    };
    let object = object().map_err(|error: mlua::Error| error.to_string())?;
    Ok((object, socket))
}

/// The socket that a method belongs to.
fn socket_of(arguments: &Arguments<'_>) -> Result<Rc<Socket>, String> {
    let wrong = || arguments.wrong(1, "table");
    let Value::Table(object) = arguments.value(1) else { return Err(wrong()) };
    let data: AnyUserData = object.raw_get(1).map_err(|_| wrong())?;
    let socket = data.borrow::<Rc<Socket>>().map_err(|_| wrong())?;
    Ok(Rc::clone(&socket))
}

/// nil and an error, without a wait.
fn refused(lua: &Lua, reason: &str) -> Result<Wait, String> {
    failed(lua, reason).map(Wait::Ready)
}

/// The socket of a method that waits, or its results where it need not.
fn ready(host: &Host, arguments: &Arguments<'_>) -> Result<Result<Rc<Socket>, Wait>, String> {
    let socket = socket_of(arguments)?;
    if !socket.is_open() {
        return refused(arguments.lua(), "closed").map(Err);
    }
    socket.check_owner(host)?;
    Ok(Ok(socket))
}

/// The results of an operation that returns 1.
fn done(lua: &Lua, result: Result<Value, String>) -> Results {
    match result {
        Ok(value) => one(lua, value),
        Err(reason) => failed(lua, reason),
    }
}

/// Registers `connect`, `sslhandshake` and the timeouts.
fn connecting(lua: &Lua, host: &Rc<Host>, methods: &Table) -> mlua::Result<()> {
    host.waiting_function(lua, methods, "connect", |host, arguments| {
        let socket = socket_of(&arguments)?;
        connect(host, &arguments, 2, socket, Value::Integer(1))
    })?;
    host.waiting_function(lua, methods, "sslhandshake", |host, arguments| {
        let socket = match ready(host, &arguments)? {
            Ok(socket) => socket,
            Err(results) => return Ok(results),
        };
        if let Some(reason) = socket.busy(Operations::All) {
            return refused(arguments.lua(), reason);
        }
        // The first argument would be a session to resume: TLS keeps them itself.
        let has_no_session = matches!(arguments.value(2), Value::Boolean(false));
        let name = arguments.optional_text(3)?.map(|name| name.to_string_lossy());
        // Other than in nginx, a certificate is verified unless the script says no.
        let verify = !matches!(arguments.value(4), Value::Boolean(false));
        let busy = socket.begin_connecting();
        Ok(Wait::until(socket.shake(name, verify, busy), move |lua, result| {
            let session = if has_no_session { Ok(Value::Boolean(true)) } else { session(lua) };
            done(lua, result.and(session))
        }))
    })?;
    host.function(lua, methods, "settimeout", |_, arguments| {
        let timeout = timeout_of(&arguments, 2)?;
        let timeouts = Timeouts { connect_ms: timeout, send_ms: timeout, read_ms: timeout };
        socket_of(&arguments)?.timeouts.set(timeouts);
        Ok(MultiValue::new())
    })?;
    host.function(lua, methods, "settimeouts", |_, arguments| {
        let timeouts = Timeouts {
            connect_ms: timeout_of(&arguments, 2)?,
            send_ms: timeout_of(&arguments, 3)?,
            read_ms: timeout_of(&arguments, 4)?,
        };
        socket_of(&arguments)?.timeouts.set(timeouts);
        Ok(MultiValue::new())
    })?;
    host.function(lua, methods, "setoption", |_, arguments| {
        socket_of(&arguments)?;
        one(arguments.lua(), 1)
    })
}

/// A value in the place where nginx has a session.
fn session(lua: &Lua) -> Result<Value, String> {
    lua.create_any_userdata(()).map(Value::UserData).map_err(|error| error.to_string())
}

/// A timeout in milliseconds; 0 and nil mean the default.
fn timeout_of(arguments: &Arguments<'_>, place: usize) -> Result<u64, String> {
    let timeout = arguments.optional_number(place)?.unwrap_or_default();
    if timeout < 0.0 {
        return Err("bad timeout value".to_owned());
    }
    let default = Timeouts::default().read_ms;
    Ok(if timeout < 1.0 { default } else { (timeout as u64).min(LONGEST.as_millis() as u64) })
}

/// `connect(host, port, options)`, whose arguments begin at this place.
fn connect(
    host: &Host,
    arguments: &Arguments<'_>,
    from: usize,
    socket: Rc<Socket>,
    result: Value,
) -> Result<Wait, String> {
    let name = arguments.text(from)?.to_string_lossy();
    if name.starts_with("unix:") {
        return refused(arguments.lua(), "scripts may not connect to Unix sockets");
    }
    let number = arguments.number(from + 1)? as i64;
    let Ok(port) = u16::try_from(number) else {
        return refused(arguments.lua(), &format!("bad port number: {number}"));
    };
    if let Some(reason) = socket.busy(Operations::All) {
        return refused(arguments.lua(), reason);
    }
    socket.check_owner(host)?;
    let mut pool = format!("{name}:{port}");
    socket.pool_size.set(None);
    if let Value::Table(options) = arguments.value(from + 2) {
        let read = |name: &str| options.raw_get::<Value>(name).map_err(|error| error.to_string());
        match read("pool")? {
            Value::Nil => {}
            Value::String(text) => pool = text.to_string_lossy(),
            value @ (Value::Integer(_) | Value::Number(_)) => {
                pool = value.to_string().map_err(|error| error.to_string())?;
            }
            value => {
                let reason = format!("bad \"pool\" option type: {}", type_name(&value));
                return Err(arguments.bad(from + 2, &reason));
            }
        }
        if let Some(size) = read("pool_size")?.as_f64() {
            if size < 1.0 {
                return Err(
                    arguments.bad(from + 2, &format!("bad \"pool_size\" option value: {}", size as i64))
                );
            }
            socket.pool_size.set(Some(size as usize));
        }
    }
    socket.close();
    *socket.pool.borrow_mut() = pool;
    let busy = socket.begin_connecting();
    Ok(Wait::until(socket.connect(name, port, busy), move |lua, connected| {
        done(lua, connected.map(|()| result))
    }))
}

/// Registers `send` and the ways to receive.
fn transferring(lua: &Lua, host: &Rc<Host>, methods: &Table) -> mlua::Result<()> {
    host.waiting_function(lua, methods, "send", |host, arguments| {
        if arguments.count() != 2 {
            let count = arguments.count();
            return Err(format!("expecting 2 arguments (including the object), but got {count}"));
        }
        let bytes = bytes_of(&arguments)?;
        let socket = match ready(host, &arguments)? {
            Ok(socket) => socket,
            Err(results) => return Ok(results),
        };
        if let Some(reason) = socket.busy(Operations::Writing) {
            return refused(arguments.lua(), reason);
        }
        let Some(bytes) = socket.sockets.held.hold(bytes) else {
            return refused(arguments.lua(), TOO_MANY);
        };
        let busy = socket.begin_writing();
        Ok(Wait::until(socket.send(bytes, busy), |lua, sent| match sent {
            Ok(sent) => one(lua, sent),
            Err(reason) => failed(lua, reason),
        }))
    })?;
    host.waiting_function(lua, methods, "receive", |host, arguments| {
        let wanted = match arguments.value(2) {
            Value::Nil => ReadPattern::Line,
            value => match arguments.lua().coerce_number(value.clone()).unwrap_or(None) {
                Some(count) if count >= 0.0 => ReadPattern::Exactly(count as usize),
                Some(_) => return Err(arguments.bad(2, "bad pattern argument")),
                None => match value.as_string().map(|text| text.as_bytes().to_vec()).as_deref() {
                    Some(b"*l") => ReadPattern::Line,
                    Some(b"*a") => ReadPattern::All,
                    Some(other) => {
                        let other = String::from_utf8_lossy(other);
                        return Err(arguments.bad(2, &format!("bad pattern argument: {other}")));
                    }
                    None => return Err(arguments.bad(2, "bad pattern argument")),
                },
            },
        };
        receive(host, &arguments, &socket_of(&arguments)?, wanted, |_| {})
    })?;
    host.waiting_function(lua, methods, "receiveany", |host, arguments| {
        let most = arguments.number(2).unwrap_or_default();
        if most < 1.0 {
            return Err("bad argument #2 to '?' (bad max argument)".to_owned());
        }
        receive(host, &arguments, &socket_of(&arguments)?, ReadPattern::Any(most as usize), |_| {})
    })?;
    let of_iterators = Rc::clone(host);
    host.function(lua, methods, "receiveuntil", move |_, arguments| receive_until(&of_iterators, &arguments))
}

/// The most bytes of a table that one call sends.
const MOST_SENT: usize = 8 << 20;

/// The bytes to send.
fn bytes_of(arguments: &Arguments<'_>) -> Result<Vec<u8>, String> {
    let bytes = match arguments.value(2) {
        Value::Nil => b"nil".to_vec(),
        Value::Boolean(true) => b"true".to_vec(),
        Value::Boolean(false) => b"false".to_vec(),
        Value::Table(table) => {
            let mut bytes = Vec::new();
            flatten(arguments.lua(), &table, &mut bytes, MOST_SENT)
                .map_err(|reason| arguments.bad(2, &reason))?;
            bytes
        }
        Value::String(_) | Value::Integer(_) | Value::Number(_) => arguments.text(2)?.as_bytes().to_vec(),
        value => {
            let expected = "string, number, boolean, nil, or array table expected, got";
            return Err(arguments.bad(2, &format!("{expected} {}", type_name(&value))));
        }
    };
    Ok(bytes)
}

/// Reads from a socket. `matched` learns whether the text of a search was found.
fn receive(
    host: &Host,
    arguments: &Arguments<'_>,
    socket: &Rc<Socket>,
    wanted: ReadPattern,
    matched: impl FnOnce(bool) + 'static,
) -> Result<Wait, String> {
    if !socket.is_readable() {
        return refused(arguments.lua(), "closed");
    }
    socket.check_owner(host)?;
    if let Some(reason) = socket.busy(Operations::Reading) {
        return refused(arguments.lua(), reason);
    }
    if matches!(wanted, ReadPattern::Exactly(0)) {
        return one(arguments.lua(), "").map(Wait::Ready);
    }
    let busy = socket.begin_reading();
    Ok(Wait::until(Rc::clone(socket).read(wanted, busy), |lua, read| match read {
        Ok((bytes, is_match)) => {
            matched(is_match);
            one(lua, lua.create_string(bytes).map_err(|error| error.to_string())?)
        }
        Err(broken) => match broken.partial {
            None => failed(lua, broken.reason),
            Some(partial) => {
                let partial = lua.create_string(partial).map_err(|error| error.to_string())?;
                several(lua, (Value::Nil, broken.reason, partial))
            }
        },
    }))
}

/// `receiveuntil`: returns a function that reads up to a text.
fn receive_until(host: &Rc<Host>, arguments: &Arguments<'_>) -> Results {
    let lua = arguments.lua();
    let socket = socket_of(arguments)?;
    let text = arguments.text(2)?;
    let mut is_inclusive = false;
    if let Value::Table(options) = arguments.value(3) {
        match options.raw_get::<Value>("inclusive").map_err(|error| error.to_string())? {
            Value::Nil => {}
            Value::Boolean(value) => is_inclusive = value,
            value => {
                let reason = format!("bad \"inclusive\" option value type: {}", type_name(&value));
                return Err(arguments.bad(3, &reason));
            }
        }
    }
    let text = text.as_bytes();
    if text.is_empty() {
        return failed(lua, "pattern is empty");
    }
    if text.len() > PATTERN_BYTES {
        return Err(arguments.bad(2, &format!("a pattern has at most {PATTERN_BYTES} bytes")));
    }
    let (text, was_matched) = (Searched::new(&text), Rc::new(std::cell::Cell::new(false)));
    let holder = lua.create_table().map_err(|error| error.to_string())?;
    let registered = host.waiting_function(lua, &holder, "receiveuntil", move |host, arguments| {
        let size = arguments.optional_number(1)?.map(|size| size as usize);
        if size == Some(0) {
            return one(arguments.lua(), "").map(Wait::Ready);
        }
        // After the last piece of a text that was read in pieces.
        if was_matched.replace(false) {
            return several(arguments.lua(), (Value::Nil, Value::Nil, Value::Nil)).map(Wait::Ready);
        }
        let wanted = ReadPattern::Until { text: text.clone(), size, is_inclusive };
        let was_matched = Rc::clone(&was_matched);
        receive(host, &arguments, &socket, wanted, move |is_match| {
            was_matched.set(is_match && size.is_some());
        })
    });
    registered.map_err(|error| error.to_string())?;
    let iterator: Function = holder.raw_get("receiveuntil").map_err(|error| error.to_string())?;
    one(lua, iterator)
}

/// Registers `close`, `setkeepalive` and `getreusedtimes`.
fn ending(lua: &Lua, host: &Rc<Host>, methods: &Table) -> mlua::Result<()> {
    host.function(lua, methods, "close", |host, arguments| {
        let socket = socket_of(&arguments)?;
        if !socket.is_open() {
            return failed(arguments.lua(), "closed");
        }
        socket.check_owner(host)?;
        if let Some(reason) = socket.busy(Operations::All) {
            return failed(arguments.lua(), reason);
        }
        socket.close();
        one(arguments.lua(), 1)
    })?;
    host.function(lua, methods, "setkeepalive", |host, arguments| {
        let socket = socket_of(&arguments)?;
        if !socket.is_open() {
            return failed(arguments.lua(), "closed");
        }
        socket.check_owner(host)?;
        if let Some(reason) = socket.busy(Operations::All) {
            return failed(arguments.lua(), reason);
        }
        let time = match arguments.optional_number(2)? {
            None => KEEPALIVE,
            Some(ms) if ms < 0.0 => return Err(arguments.bad(2, "bad timeout argument")),
            Some(ms) if ms < 1.0 => LONGEST,
            Some(ms) => Duration::from_millis(ms as u64).min(LONGEST),
        };
        let size = match arguments.optional_number(3)? {
            None => socket.pool_size.get().unwrap_or(POOL_SIZE),
            Some(size) if size < 1.0 => return Err(arguments.bad(3, "bad \"pool_size\" option value")),
            Some(size) => size as usize,
        };
        match socket.keep(time, size) {
            Ok(()) => one(arguments.lua(), 1),
            Err(reason) => failed(arguments.lua(), reason),
        }
    })?;
    host.function(lua, methods, "getreusedtimes", |host, arguments| {
        let socket = socket_of(&arguments)?;
        let Some(reuses) = socket.reuses() else { return failed(arguments.lua(), "closed") };
        socket.check_owner(host)?;
        one(arguments.lua(), reuses)
    })
}

#[cfg(test)]
mod tests;
