//! Sockets of scripts, against a server on this machine.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::snippets::{OnWorker, said_on_worker};
use crate::testing::entry;

/// Starts a server of commands in lines, and returns its port.
fn serve() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || commands(stream.unwrap()));
        }
    });
    port
}

fn commands(mut stream: TcpStream) {
    let reader = BufReader::new(stream.try_clone().unwrap());
    for (count, line) in reader.lines().enumerate() {
        let Ok(line) = line else { return };
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let reply = match word {
            "echo" => format!("{rest}\n"),
            "count" => format!("{}\n", count + 1),
            "crlf" => "line1\r\nline2\r\nlast\n".to_owned(),
            "partial" => {
                stream.write_all(b"abc").unwrap();
                return;
            }
            "marks" => "aa--XX--bb--XX--cc--XX--".to_owned(),
            "much" => "x".repeat(100_000),
            "quit" => return,
            _ => String::new(),
        };
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// Loopback is allowed.
fn open() -> Value {
    json!({"allowed_networks": ["127.0.0.0/8"], "socket_bytes": 50_000, "sockets": 4})
}

/// Texts before each function: `D` writes results, `connected` is a socket.
fn with_prelude(body: &str, port: u16) -> String {
    let prelude = "local function D(...) local o = {} for i = 1, select('#', ...) do o[i] = tostring((select(i, ...))) end \
                   return table.concat(o, ',') end \
                   local function E(e) return (tostring(e):gsub('^.-:%d+: ', '')) end \
                   local function connected(o) local s = ngx.socket.tcp() s:settimeout(5000) \
                   assert(s:connect('127.0.0.1', PORT, o)) return s end ";
    format!("{prelude}{body}").replace("PORT", &port.to_string())
}

fn check(cases: &[(&str, &str)]) {
    let port = serve();
    for (body, expected) in cases {
        let said = said_on_worker(&open(), &with_prelude(body, port));
        assert_eq!(said, format!("200 {expected}"), "{body}");
    }
}

#[test]
fn sockets_send_and_receive() {
    check(&[
        (
            "local s = ngx.socket.tcp() ngx.say(D(s:connect('127.0.0.1', PORT))) ngx.say(D(s:send('echo hello\\n'))) \
             ngx.say(D(s:receive())) ngx.say(D(s:close())) ngx.say(D(s:close()))",
            "1\n11\nhello\n1\nnil,closed",
        ),
        (
            "local s = connected() ngx.say(s:send({'ec', {'ho ', 1, 2.5}, '\\n'})) ngx.say(s:receive('*l'))",
            "10\n12.5",
        ),
        (
            "local s = connected() s:send('partial\\n') ngx.say(D(s:receive('*a'))) ngx.say(D(s:receive('*a')), '.')",
            "abc\n.",
        ),
        (
            "local s = connected() s:send('partial\\n') ngx.say(D(s:receive(10))) ngx.say(D(s:receive(1))) ngx.say(D(s:send('x')))",
            "nil,closed,abc\nnil,closed\n1",
        ),
        ("local s = connected() s:send('partial\\n') ngx.say(D(s:receive('*l')))", "nil,closed,abc"),
        (
            "local s = connected() s:send('crlf\\n') ngx.say(D(s:receive())) ngx.say(D(s:receive(3), s:receive(2), s:receive(0)))",
            "line1\nlin,e2,",
        ),
        (
            "local s = connected() s:send('marks\\n') local r = s:receiveuntil('--XX--', {inclusive = true}) \
             ngx.say(D(r())) ngx.say(D(r())) local q = s:receiveuntil('--XX--') ngx.say(D(q(1))) ngx.say(D(q(1))) \
             ngx.say(D(q(1))) ngx.say(D(q(1)))",
            "aa--XX--\nbb--XX--\nc\nc\n\nnil,nil,nil",
        ),
        // Only a text that was read in pieces ends with nil.
        (
            "local s = connected() s:send('marks\\n') local r = s:receiveuntil('--XX--') \
             ngx.say(D(r())) ngx.say(D(r(1))) ngx.say(D(r(100))) ngx.say(D(r()))",
            "aa\nb\nb\nnil,nil,nil",
        ),
        (
            "local s = connected() s:send('echo abc\\n') local d, e = s:receiveany(100) ngx.say(#d > 0, tostring(e))",
            "truenil",
        ),
        (
            "local s = connected() s:send('much\\n') ngx.say(D(s:receive('*l')):sub(1, 61))",
            "nil,scripts may read 50000 bytes at a time at most,xxxxxxxxxx",
        ),
        (
            "local s = assert(ngx.socket.connect('127.0.0.1', PORT)) s:send('echo x\\n') ngx.say(type(s), s:receive())",
            "tablex",
        ),
    ]);
}

#[test]
fn errors_of_sockets() {
    check(&[
        (
            "local s = ngx.socket.tcp() ngx.say(D(s:send('x'))) ngx.say(D(s:receive())) ngx.say(D(s:close())) \
             ngx.say(D(s:setkeepalive())) ngx.say(D(s:getreusedtimes())) ngx.say(D(s:sslhandshake()))",
            "nil,closed\nnil,closed\nnil,closed\nnil,closed\nnil,closed\nnil,closed",
        ),
        (
            "local s = ngx.socket.tcp() ngx.say(D(s:connect('127.0.0.1', 70000)))",
            "nil,bad port number: 70000",
        ),
        ("local s = ngx.socket.tcp() ngx.say(D(s:connect('127.0.0.1', 1)))", "nil,connection refused"),
        (
            "local s = ngx.socket.tcp() ngx.say(D(s:connect('unix:/x')))",
            "nil,scripts may not connect to Unix sockets",
        ),
        (
            "local s = ngx.socket.tcp() ngx.say(D(s:connect('10.0.0.1', 80)))",
            "nil,scripts may not connect to 10.0.0.1; see the setting allowed_networks",
        ),
        (
            "local s = ngx.socket.tcp() ngx.say(D(s:connect('a b', 80)))",
            "nil,a b could not be resolved (3: Host not found)",
        ),
        (
            "local s = connected() s:settimeout(5) ngx.say(D(s:receive())) s:send('echo x\\n') s:settimeout(5000) ngx.say(D(s:receive()))",
            "nil,timeout,\nx",
        ),
        (
            "local s = connected() local o = {} for _, p in ipairs{'*x', -1, {}} do local ok, e = pcall(s.receive, s, p) \
             o[#o + 1] = E(e) end local ok, e = pcall(s.receiveany, s, 0) o[#o + 1] = E(e) ngx.say(table.concat(o, '; '))",
            "bad argument #2 to 'receive' (bad pattern argument: *x); bad argument #2 to 'receive' (bad pattern argument); \
             bad argument #2 to 'receive' (bad pattern argument); bad argument #2 to '?' (bad max argument)",
        ),
        (
            "local s = connected() local w = ngx.thread.spawn(function() return s:receive() end) \
             ngx.say(D(s:receive())) ngx.say(D(s:close())) ngx.say(D(s:send('echo from thread\\n'))) \
             ngx.say(D(ngx.thread.wait(w)))",
            "nil,socket busy reading\nnil,socket busy reading\n17\ntrue,from thread",
        ),
        (
            "local s = connected() s:send('echo ab\\n') s:receive(1) ngx.say(D(s:setkeepalive()))",
            "nil,unread data in buffer",
        ),
        (
            "local o = {} for i = 1, 5 do local s, e = ngx.socket.connect('127.0.0.1', PORT) o[i] = s or e end ngx.say(o[5])",
            "scripts of a worker may have 4 sockets at most",
        ),
        ("local s = connected() ngx.say(D(s:receiveuntil('')))", "nil,pattern is empty"),
        (
            "local ok, e = pcall(ngx.socket.tcp().send, {}, 'x') ngx.say(E(e))",
            "bad argument #1 to 'send' (table expected, got table)",
        ),
    ]);
}

#[test]
fn pools_keep_connections() {
    check(&[
        (
            "local function use() local s = connected({pool = 'mine'}) s:send('count\\n') local n = s:receive() \
             local r = s:getreusedtimes() ngx.say(n, ' ', r, ' ', D(s:setkeepalive(1000, 5))) end use() use() use()",
            "1 0 1\n2 1 1\n3 2 1",
        ),
        // A pool has a size, and gives way where the sockets of the worker are used up.
        (
            "local a, b = connected(), connected() a:setkeepalive(1000, 1) b:setkeepalive(1000, 1) \
             local c, d = connected(), connected() ngx.say(c:getreusedtimes(), d:getreusedtimes())",
            "10",
        ),
        (
            "for i = 1, 8 do local s = connected({pool = 'p' .. i}) assert(s:setkeepalive()) end ngx.say('ok')",
            "ok",
        ),
        // The server has closed it.
        (
            "local s = connected() s:send('quit\\n') s:receive() ngx.say(D(s:setkeepalive()))",
            "nil,invalid connection",
        ),
    ]);
}

#[test]
fn sockets_end_with_their_request() {
    let port = serve();
    let mut worker = OnWorker::new(&open());
    let text = with_prelude(
        "local kept return function() if kept then ngx.say(D(kept:send('echo x\\n'))) else \
         kept = connected() ngx.say('kept') end end",
        port,
    );
    let entry = entry("serverless-pre-function", json!({"functions": [text]})).unwrap();
    assert_eq!(worker.run(&entry), "200 kept");
    assert_eq!(worker.run(&entry), "200 nil,closed");
    // A timer of the request is another owner.
    let timer = "local s = connected() local result ngx.timer.at(0, function() local ok, e = pcall(s.send, s, 'x') \
                 result = E(e) end) while not result do ngx.sleep(0.001) end ngx.say(result)";
    assert_eq!(worker.output(&with_prelude(timer, port)), "200 bad request");
    let own = "local result ngx.timer.at(0, function() local s = connected() s:send('echo in timer\\n') \
               result = s:receive() end) while not result do ngx.sleep(0.001) end ngx.say(result)";
    assert_eq!(worker.output(&with_prelude(own, port)), "200 in timer");
}

/// Starts a server with TLS that echoes its input, with a self-signed certificate.
fn serve_tls() -> u16 {
    use tokio_rustls::rustls::{ServerConfig, crypto::aws_lc_rs::default_provider, pki_types::PrivateKeyDer};
    let key = rcgen::KeyPair::generate().unwrap();
    let cert =
        rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(std::sync::Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(socket).await {
                        let (mut read, mut write) = tokio::io::split(stream);
                        let _ = tokio::io::copy(&mut read, &mut write).await;
                    }
                });
            }
        });
    });
    port
}

#[test]
fn tls_is_verified_unless_the_script_says_no() {
    let port = serve_tls();
    let check = |body: &str, expected: &str| {
        let said = said_on_worker(&open(), &with_prelude(body, port));
        assert_eq!(said, format!("200 {expected}"), "{body}");
    };
    // Another thread resolves the name.
    let start = "local s = ngx.socket.tcp() s:settimeout(5000) assert(s:connect('localhost', PORT)) ";
    check(
        &format!(
            "{start} ngx.say(type(s:sslhandshake(nil, nil, false))) s:send('over TLS\\n') ngx.say(s:receive())"
        ),
        "userdata\nover TLS",
    );
    check(&format!("{start} ngx.say(D(s:sslhandshake(false, nil, false)))"), "true");
    check(
        &format!(
            "{start} local ok, e = s:sslhandshake() ngx.say(tostring(ok), e:find('certificate') ~= nil) ngx.say(D(s:send('x')))"
        ),
        "niltrue\nnil,closed",
    );
    // A pool does not lend its unverified connection to a script that verifies.
    check(
        &format!(
            "{start} s:sslhandshake(nil, nil, false) assert(s:setkeepalive()) local t = ngx.socket.tcp() \
             t:connect('localhost', PORT) ngx.say(t:getreusedtimes()) ngx.say(D(t:sslhandshake(nil, nil, true)))"
        ),
        "1\nnil,the certificate of the pooled connection was not verified for localhost",
    );
}

#[test]
fn names_that_lead_into_a_closed_network_are_refused() {
    let body = "local s = ngx.socket.tcp() local ok, e = s:connect('localhost', 80) ngx.say(tostring(ok), (e:gsub('to .-;', 'to it;')))";
    let refused = "200 nilscripts may not connect to it; see the setting allowed_networks";
    assert_eq!(said_on_worker(&json!({}), body), refused);
}
