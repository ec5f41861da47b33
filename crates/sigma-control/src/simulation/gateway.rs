//! A simulated process of the gateway, and its operators.

use std::cell::RefCell;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use serde_json::{Value, json};
use sigma_net::Stream;
use sigma_plugin::Kind;
use tokio::signal::unix::SignalKind;
use tower_service::Service;

use super::peers::{Conversation, Message};
use super::{ADMIN, CONTROL, LISTEN, LOOK, STATUS, Simulation, Task, seams};
use crate::{AllPlugins, LogControl, Options, Origin, Sandbox, Source, Supervisor, WorkerLost};

/// The key of an admin.
pub(super) const KEY: &str = "0123456789abcdef0123456789abcdef";

/// The plugins of all simulations; made once, as that takes longer than most of them.
fn plugins() -> AllPlugins {
    static KINDS: LazyLock<Vec<Arc<dyn Kind>>> = LazyLock::new(sigma_plugins::kinds);
    AllPlugins::built_in(KINDS.clone())
}

/// Adds the missing settings that keep a process apart from the machine.
fn completed(mut config: Value, folder: &Path) -> Value {
    let listener = LISTEN.to_string();
    let defaults = json!({
        "workers": 1, "listeners": [listener], "health_file": { "path": "off" }, "history": { "keep": 0 },
        "status": { "address": STATUS.to_string() }, "control": { "address": CONTROL.to_string() },
        "process": { "sandbox": "off" }, "load_shedding": { "enabled": false },
        "access_log": { "path": "off" },
    });
    let (Some(config_map), Value::Object(defaults)) = (config.as_object_mut(), defaults) else {
        return config;
    };
    for (name, value) in defaults {
        config_map.entry(name).or_insert(value);
    }
    for (section, name, value) in
        [("store", "path", json!(folder)), ("discovery", "last_good", json!({ "path": "off" }))]
    {
        if let Some(section) = config_map.get_mut(section).and_then(Value::as_object_mut) {
            section.entry(name).or_insert(value);
        }
    }
    config
}

/// A configuration of one route for everything to an upstream.
pub(super) fn catch_all(upstream: Value) -> Value {
    json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }] })
}

/// The path of an access log for [`Gateway::await_access`].
pub(super) const ACCESS_LOG: &str = "{dir}/access.log";

/// Settings of a gateway with a store and an Admin API.
pub(super) fn managed() -> Value {
    let key = json!({ "key": KEY, "role": "admin" });
    json!({ "admin": { "address": ADMIN.to_string(), "keys": [key] }, "store": { "kind": "embedded" } })
}

/// Joins the members of two objects.
pub(super) fn joined(mut one: Value, other: Value) -> Value {
    if let (Some(one), Value::Object(other)) = (one.as_object_mut(), other) {
        one.extend(other);
    }
    one
}

/// The results of reloads.
#[derive(Clone, Default)]
struct Results(Rc<RefCell<Vec<Result<(), String>>>>);

impl LogControl for Results {
    fn set_level(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn reopen(&self) {}

    fn carried_out(&mut self, result: Result<&str, &str>) {
        self.0.borrow_mut().push(result.map(drop).map_err(str::to_owned));
    }

    fn outcome(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn flush(&self) {}
}

/// The response to an operator.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) text: String,
}

impl Reply {
    /// Returns the body as JSON.
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A simulated process.
pub(super) struct Gateway {
    simulation: Simulation,
    folder: tempfile::TempDir,
    running: Option<Task<Result<(), WorkerLost>>>,
    results: Results,
}

impl Gateway {
    /// Starts it.
    ///
    /// # Errors
    /// Returns the reason why it does not start.
    pub(super) fn start(simulation: &Simulation, config: Value) -> Result<Gateway, String> {
        let folder = tempfile::tempdir().unwrap();
        let results = Results::default();
        let mut gateway = Gateway { simulation: simulation.clone(), folder, running: None, results };
        gateway.rewrite(config);
        gateway.start_again()?;
        Ok(gateway)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("gateway.yaml")
    }

    /// Starts another process with the file, after the one before has ended.
    ///
    /// # Errors
    /// Returns the reason why it does not start.
    pub(super) fn start_again(&mut self) -> Result<(), String> {
        let (source, plugins) = (Source::file(self.path()), plugins());
        let checked = source.load(&*plugins.roster).map_err(|error| error.to_string())?;
        let origin = Origin::of_environment().unwrap();
        let (sandbox, _) = Sandbox::enter(&checked.config, &plugins.roster, &source, &origin).unwrap();
        let options = Options { source, watch: false, plugins, sandbox };
        let log = Box::new(self.results.clone());
        let started = self.simulation.run(Supervisor::start(options, checked, log, &origin));
        let supervisor = started.map_err(|error| error.to_string())?;
        self.running = Some(self.simulation.begin(supervisor.run()));
        Ok(())
    }

    /// Replaces the file; `{dir}` is a folder of this gateway.
    pub(super) fn rewrite(&self, config: Value) {
        let text = completed(config, self.folder.path()).to_string();
        self.rewrite_text(&text.replace("{dir}", &self.folder.path().to_string_lossy()));
    }

    /// Replaces the file by a text, which may be invalid.
    pub(super) fn rewrite_text(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }

    /// Reloads the file, and waits for the result.
    ///
    /// # Errors
    /// Returns the reason of a refusal.
    pub(super) fn reload(&self) -> Result<(), String> {
        let before = self.results.0.borrow().len();
        self.hang_up();
        assert!(self.simulation.until(|| self.reloads() > before), "no result of the reload");
        self.results.0.borrow()[before].clone()
    }

    /// Requests a reload, which happens later.
    pub(super) fn hang_up(&self) {
        seams::send(SignalKind::hangup());
    }

    /// Returns how many reloads have a result.
    pub(super) fn reloads(&self) -> usize {
        self.results.0.borrow().len()
    }

    /// Replaces the file and reloads it.
    ///
    /// # Panics
    /// It is refused.
    pub(super) fn change(&self, config: Value) {
        self.rewrite(config);
        self.reload().unwrap();
    }

    /// Orders it to stop.
    pub(super) fn terminate(&self) {
        seams::send(SignalKind::terminate());
    }

    /// Waits for its end; returns true if it has ended in order.
    pub(super) fn wait(&mut self) -> bool {
        let ended = self.running.take().is_some_and(|running| running.join().is_ok());
        seams::close();
        ended
    }

    /// Connects a client.
    pub(super) fn connect(&self) -> Client {
        self.try_connect().unwrap()
    }

    /// Connects a client.
    ///
    /// # Errors
    /// Returns an error if it does not listen.
    pub(super) fn try_connect(&self) -> std::io::Result<Client> {
        Ok(Client::new(self.simulation.connect(LISTEN)?, &self.simulation))
    }

    /// Connects a client of another protocol than HTTP/1.1, such as TLS.
    pub(super) fn dial(&self) -> Stream {
        self.simulation.connect(LISTEN).unwrap().into_stream()
    }

    /// Sends a GET on a new connection.
    pub(super) fn get(&self, target: &str) -> Message {
        self.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"))
    }

    /// Sends a request on a new connection.
    pub(super) fn ask(&self, request: &str) -> Message {
        self.connect().ask(request)
    }

    /// Sends a GET with these fields on a new connection, on the side; returns its status.
    pub(super) fn begin(&self, fields: &str) -> Task<u16> {
        let mut client = self.simulation.connect(LISTEN).unwrap();
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        self.simulation.begin(async move { client.ask(&request).await.unwrap().status() })
    }

    /// Calls a listener of operators.
    fn call(&self, at: std::net::SocketAddr, method: &str, path: &str, body: Option<&Value>) -> Reply {
        let mut router = seams::router(at).unwrap_or_else(|| panic!("nothing listens at {at}"));
        let request = Request::builder().method(method).uri(path).header("host", at.to_string());
        let request = request.header("x-api-key", KEY).header("content-type", "application/json");
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let mut request = request.body(body).unwrap();
        request.extensions_mut().insert(ConnectInfo(std::net::SocketAddr::from(([127, 0, 0, 1], 1))));
        self.simulation.run(async move {
            let response = router.call(request).await.unwrap_or_else(|never| match never {});
            let status = response.status().as_u16();
            let bytes = axum::body::to_bytes(response.into_body(), 64 << 20).await.unwrap();
            Reply { status, text: String::from_utf8_lossy(&bytes).into_owned() }
        })
    }

    /// Calls the Control API.
    pub(super) fn control(&self, method: &str, path: &str, body: Option<&Value>) -> Reply {
        self.call(CONTROL, method, path, body)
    }

    /// Calls the Admin API.
    pub(super) fn admin(&self, method: &str, path: &str, body: Option<&Value>) -> Reply {
        self.call(ADMIN, method, &format!("/apisix/admin/{path}"), body)
    }

    /// Writes a resource.
    ///
    /// # Panics
    /// It is refused.
    pub(super) fn put(&self, resource: &str, value: &Value) {
        let reply = self.admin("PUT", resource, Some(value));
        assert!(matches!(reply.status, 200 | 201), "{resource}: {reply:?}");
    }

    /// Returns the number of a counter on the page of the status listener.
    ///
    /// # Panics
    /// There is no such counter.
    pub(super) fn counter(&self, name: &str) -> u64 {
        let page = self.call(STATUS, "GET", "/status/counters", None).text;
        let start = format!("{name} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name} is missing in\n{page}"))
    }

    /// Returns the nodes of an upstream in the Control API.
    pub(super) fn nodes(&self, upstream: &str) -> Vec<Value> {
        let reply = self.control("GET", &format!("/v1/nodes/{upstream}"), None).json();
        reply["nodes"].as_array().cloned().unwrap_or_default()
    }

    /// Returns the error log.
    pub(super) fn log(&self) -> String {
        self.simulation.0.log.text()
    }

    /// Waits for a text in the access log of [`ACCESS_LOG`]. Another thread writes it, so real time passes, too.
    pub(super) fn await_access(&self, text: &str) {
        let written = || fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
        let is_written = || {
            self.simulation.pass(LOOK);
            written().contains(text)
        };
        assert!(sigma_testkit::until(sigma_testkit::DEADLINE, is_written), "{text} is not in\n{}", written());
    }

    /// Waits for a text in the error log.
    pub(super) fn await_log(&self, text: &str) {
        assert!(self.simulation.until(|| self.log().contains(text)), "{text} is not in\n{}", self.log());
    }
}

/// A client of the gateway, for a test that goes step by step.
pub(super) struct Client {
    conversation: Conversation,
    simulation: Simulation,
}

impl Client {
    /// Returns the client, or the node, at this end of a connection.
    pub(super) fn new(conversation: Conversation, simulation: &Simulation) -> Client {
        Client { conversation, simulation: simulation.clone() }
    }

    /// Returns its port.
    pub(super) fn port(&self) -> u16 {
        self.conversation.port()
    }

    /// Reads a request.
    ///
    /// # Panics
    /// The connection ends before it.
    pub(super) fn request(&mut self) -> Message {
        self.simulation.run(self.conversation.request()).unwrap().unwrap()
    }

    /// Reads a line; an empty one at the end of the connection.
    pub(super) fn line(&mut self) -> String {
        self.simulation.run(self.conversation.line())
    }

    /// Reads up to the end of the connection, which must come in this time.
    ///
    /// # Errors
    /// Returns an error if the end is a reset or does not come.
    pub(super) fn rest_within(&mut self, time: Duration) -> Result<Vec<u8>, String> {
        let rest = self.conversation.whole_rest();
        let rest = self.simulation.run(async { tokio::time::timeout(time, rest).await });
        rest.unwrap_or_else(|_| Err("the connection is open".to_owned()))
    }

    /// Reads up to the end of the connection.
    ///
    /// # Errors
    /// Returns an error if the end is a reset.
    pub(super) fn whole_rest(&mut self) -> Result<Vec<u8>, String> {
        self.simulation.run(self.conversation.whole_rest())
    }

    /// Reads up to the end of the connection.
    ///
    /// # Panics
    /// It ends in order, or after further bytes.
    pub(super) fn expect_reset(&mut self) {
        assert_eq!(self.whole_rest(), Err("a reset after []".to_owned()));
    }

    /// Resets the connection.
    pub(super) fn reset(self) {
        self.conversation.reset();
    }

    /// Sends bytes.
    pub(super) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.simulation.run(self.conversation.send(bytes)).unwrap();
    }

    /// Sends a request and returns the response.
    pub(super) fn ask(&mut self, request: &str) -> Message {
        self.simulation.run(self.conversation.ask(request)).unwrap()
    }

    /// Sends a GET.
    pub(super) fn get(&mut self, target: &str) -> Message {
        self.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"))
    }

    /// Reads the response to a request with this method.
    ///
    /// # Errors
    /// Returns an error if the response is missing, malformed or cut.
    pub(super) fn response(&mut self, method: &str) -> Result<Message, String> {
        self.simulation.run(self.conversation.response(method))
    }

    /// Reads so many bytes; fewer at the end of the connection.
    pub(super) fn exactly(&mut self, n: usize) -> Vec<u8> {
        self.simulation.run(self.conversation.exactly(n))
    }

    /// Closes the sending direction.
    pub(super) fn finish(&mut self) {
        self.conversation.finish();
    }

    /// Reads the head of a response, and returns its start.
    pub(super) fn head(&mut self) -> String {
        self.simulation.run(self.conversation.head()).unwrap().map_or_else(String::new, |head| head.start)
    }

    /// Reads up to the end of the connection.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        self.simulation.run(self.conversation.rest())
    }
}
