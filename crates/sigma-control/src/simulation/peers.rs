//! The clients and nodes of a simulated gateway.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

use serde_json::{Value, json};
use sigma_net::Stream;
use sigma_net::simulation::{Dialling, Wire};
use sigma_proxy::simulation::message::{Ended, Framing, Head, Reader};
use sigma_proxy::simulation::stream::{Mood, PeerEnd, connection};
use sigma_proxy::simulation::world::World;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A message with its body.
#[derive(Debug)]
pub(super) struct Message {
    head: Head,
    pub(super) body: Vec<u8>,
}

impl Message {
    /// Returns the status of a response.
    pub(super) fn status(&self) -> u16 {
        self.head.start.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
    }

    /// Returns the method of a request.
    pub(super) fn method(&self) -> &str {
        self.head.start.split(' ').next().unwrap_or_default()
    }

    /// Returns the target of a request.
    pub(super) fn target(&self) -> &str {
        self.head.start.split(' ').nth(1).unwrap_or_default()
    }

    /// Returns the value of a field.
    ///
    /// # Panics
    /// The field has several.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.head.only(name).unwrap()
    }

    /// Returns all values of a field.
    pub(super) fn all(&self, name: &str) -> Vec<&str> {
        let same = self.head.fields().iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        same.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns the body as a text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// One end of a connection with the gateway.
pub(super) struct Conversation {
    end: PeerEnd,
    reader: Reader,
    /// The port of a client; 0 at a node.
    port: u16,
    /// Bytes are sent at once, instead of in pieces by chance.
    is_calm: bool,
}

impl Conversation {
    fn new(world: &World, end: PeerEnd, is_calm: bool) -> Conversation {
        let (piece, paused) = if is_calm { (1 << 16, 0) } else { (world.one_of(&[7, 500, 1 << 16]), 5) };
        Conversation { end, reader: Reader::new(world, piece, paused), port: 0, is_calm }
    }

    /// Returns the connection as a stream, on which nothing was read yet.
    pub(super) fn into_stream(self) -> Stream {
        Stream::Simulated(Box::new(self.end))
    }

    /// Returns the port of this client.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// Returns an error if the connection has ended.
    pub(super) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), String> {
        if self.is_calm {
            self.end.write_at_once(bytes.as_ref());
            return Ok(());
        }
        self.end.write(bytes.as_ref()).await.map_err(|error| error.to_string())
    }

    /// Reads a request. None if the connection has ended.
    ///
    /// # Errors
    /// Returns an error if it is malformed or cut.
    pub(super) async fn request(&mut self) -> Result<Option<Message>, String> {
        let Some(head) = self.reader.head(&mut self.end).await? else { return Ok(None) };
        let framing = head.framing(Framing::None)?;
        match self.reader.body(&mut self.end, framing).await? {
            (body, Ended::Complete) => Ok(Some(Message { head, body })),
            (_, Ended::Cut) => Err(format!("a request was cut: {head:?}")),
        }
    }

    /// Reads the response to a request with this method.
    ///
    /// # Errors
    /// Returns an error if the response is missing, malformed or cut.
    pub(super) async fn response(&mut self, method: &str) -> Result<Message, String> {
        loop {
            let head =
                self.reader.head(&mut self.end).await?.ok_or("the connection ended without a response")?;
            let interim = head.start.starts_with("HTTP/1.1 1") && !head.start.starts_with("HTTP/1.1 101");
            if interim {
                continue;
            }
            let has_body =
                method != "HEAD" && !["101", "204", "304"].iter().any(|no| head.start.contains(no));
            let framing = if has_body { head.framing(Framing::UntilClose)? } else { Framing::None };
            return match self.reader.body(&mut self.end, framing).await? {
                (body, Ended::Complete) => Ok(Message { head, body }),
                (body, Ended::Cut) => Err(format!("a response was cut: {head:?} {} bytes", body.len())),
            };
        }
    }

    /// Sends a request and reads its response.
    ///
    /// # Errors
    /// As [`Conversation::response`].
    pub(super) async fn ask(&mut self, request: &str) -> Result<Message, String> {
        self.send(request).await?;
        self.response(request.split(' ').next().unwrap_or_default()).await
    }

    /// Reads the head of a message. None if the connection has ended.
    ///
    /// # Errors
    /// Returns an error if it is malformed.
    pub(super) async fn head(&mut self) -> Result<Option<Head>, String> {
        self.reader.head(&mut self.end).await
    }

    /// Reads a line; an empty one at the end of the connection.
    pub(super) async fn line(&mut self) -> String {
        self.reader.line(&mut self.end).await.unwrap_or_default()
    }

    /// Reads so many bytes; fewer at the end of the connection.
    pub(super) async fn exactly(&mut self, n: usize) -> Vec<u8> {
        self.reader.body(&mut self.end, Framing::Known(n)).await.map(|(bytes, _)| bytes).unwrap_or_default()
    }

    /// Reads up to the end of the connection.
    pub(super) async fn rest(&mut self) -> Vec<u8> {
        self.reader.body(&mut self.end, Framing::UntilClose).await.map(|(body, _)| body).unwrap_or_default()
    }

    /// Reads up to the end of the connection.
    ///
    /// # Errors
    /// Returns an error if the end is a reset.
    pub(super) async fn whole_rest(&mut self) -> Result<Vec<u8>, String> {
        let rest = self.rest().await;
        if self.end.is_reset() { Err(format!("a reset after {rest:?}")) } else { Ok(rest) }
    }

    /// Closes the sending direction.
    pub(super) fn finish(&mut self) {
        self.end.finish();
    }

    /// Resets the connection.
    pub(super) fn reset(mut self) {
        self.end.reset();
    }
}

/// A connection that a node serves.
type Serving = Pin<Box<dyn Future<Output = ()>>>;

struct Listening {
    connections: Cell<usize>,
    serve: Box<dyn Fn(Conversation) -> Serving>,
}

/// The network between the gateway and its nodes. Clones are the same network.
#[derive(Clone)]
pub(super) struct Network {
    pub(super) world: World,
    pub(super) is_calm: bool,
    nodes: Rc<RefCell<BTreeMap<SocketAddr, Rc<Listening>>>>,
    next: Rc<Cell<u16>>,
}

impl Network {
    /// A network in which nothing is late, if it `is_calm`.
    pub(super) fn new(world: &World, is_calm: bool) -> Network {
        Network { world: world.clone(), is_calm, nodes: Rc::default(), next: Rc::new(Cell::new(1)) }
    }

    fn mood(&self) -> Mood {
        if self.is_calm {
            return Mood { piece: 1 << 16, delayed: 0, room: 1 << 20, breaks_at: None };
        }
        let world = &self.world;
        let (piece, room) = (world.one_of(&[20, 1_000, 1 << 16]), world.one_of(&[300, 5_000, 1 << 16]));
        Mood { piece, delayed: world.one_of(&[0, 5, 30]), room, breaks_at: None }
    }

    /// Connects to a node.
    pub(super) fn dial(&self, addr: SocketAddr) -> Dialling {
        let delay_ms = if self.is_calm { 0 } else { self.world.one_of(&[0, 0, 1, 30, 200]) };
        let node = self.nodes.borrow().get(&addr).cloned();
        let near = node.map(|node| {
            let (near, far) = connection(&self.world, self.mood());
            node.connections.set(node.connections.get() + 1);
            tokio::task::spawn_local((node.serve)(Conversation::new(&self.world, far, self.is_calm)));
            near
        });
        let world = self.world.clone();
        Box::pin(async move {
            if delay_ms > 0 {
                world.sleep(delay_ms).await;
            }
            match near {
                Some(near) => Ok(Box::new(near) as Box<dyn Wire>),
                None => Err(std::io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }

    /// Connects a client to a listener of the gateway.
    ///
    /// # Errors
    /// Returns an error if the gateway does not listen there.
    pub(super) fn connect(&self, addr: SocketAddr) -> std::io::Result<Conversation> {
        let (near, far) = connection(&self.world, self.mood());
        let port = 40_000 + self.next_number();
        let peer = SocketAddr::from(([127, 0, 0, 1], port));
        sigma_net::simulation::connect(addr, Box::new(near), peer)?;
        Ok(Conversation { port, ..Conversation::new(&self.world, far, self.is_calm) })
    }

    fn next_number(&self) -> u16 {
        self.next.replace(self.next.get().wrapping_add(1)) % 20_000
    }

    /// An address without a node.
    pub(super) fn free_address(&self) -> SocketAddr {
        let [high, low] = self.next_number().to_be_bytes();
        SocketAddr::from(([10, 1, high, low], 80))
    }

    /// A node that serves each of its connections so.
    pub(super) fn serve<F>(&self, serve: impl Fn(Conversation) -> F + 'static) -> Node
    where
        F: Future<Output = ()> + 'static,
    {
        self.serve_at(self.free_address(), serve)
    }

    /// The same at an address.
    pub(super) fn serve_at<F>(&self, address: SocketAddr, serve: impl Fn(Conversation) -> F + 'static) -> Node
    where
        F: Future<Output = ()> + 'static,
    {
        let serve = Box::new(move |conversation| Box::pin(serve(conversation)) as Serving);
        let listening = Rc::new(Listening { connections: Cell::new(0), serve });
        self.nodes.borrow_mut().insert(address, Rc::clone(&listening));
        Node { address, listening, requests: Rc::default(), network: self.clone() }
    }

    /// A node whose connections the test serves.
    pub(super) fn scripted(&self) -> (Node, UnboundedReceiver<Conversation>) {
        let (send, accepted) = unbounded_channel();
        let serve = move |conversation| {
            // The connection ends with a test that has ended.
            let _ = send.send(conversation);
            std::future::ready(())
        };
        (self.serve(serve), accepted)
    }

    /// A node that returns 200 and, as JSON, the target and the fields that it has got.
    pub(super) fn mirror(&self) -> Node {
        self.answer(|request| {
            let body = json!({ "target": request.target(), "headers": request.head.fields() });
            response(200, "", &body.to_string())
        })
    }

    /// A node that answers each request by a function, which returns the bytes of the response.
    pub(super) fn answer(&self, answer: impl Fn(&Message) -> Vec<u8> + 'static) -> Node {
        let answer = Rc::new(answer);
        self.answer_later(move |request| {
            let response = answer(&request);
            async move { response }
        })
    }

    /// The same with a function that waits.
    pub(super) fn answer_later<F>(&self, answer: impl Fn(Message) -> F + 'static) -> Node
    where
        F: Future<Output = Vec<u8>> + 'static,
    {
        let (requests, answer) = (Rc::<Cell<usize>>::default(), Rc::new(answer));
        let counted = Rc::clone(&requests);
        let mut node = self.serve(move |mut client| {
            let (requests, answer) = (Rc::clone(&counted), Rc::clone(&answer));
            async move {
                while let Ok(Some(request)) = client.request().await {
                    requests.set(requests.get() + 1);
                    let response = answer(request).await;
                    if client.send(response).await.is_err() {
                        return;
                    }
                }
            }
        });
        node.requests = requests;
        node
    }

    /// A node that returns 200, its name in `X-Origin`, and the target.
    pub(super) fn echo(&self, name: &str) -> Node {
        let name = name.to_owned();
        self.answer(move |request| response(200, &format!("X-Origin: {name}\r\n"), request.target()))
    }

    /// A node that always returns this status.
    pub(super) fn always(&self, status: u16) -> Node {
        self.answer(move |_| response(status, "", "no"))
    }

    /// A node with a settable status.
    pub(super) fn moody(&self, status: u16) -> (Node, Rc<Cell<u16>>) {
        let status = Rc::new(Cell::new(status));
        let now = Rc::clone(&status);
        (self.answer(move |_| response(now.get(), "", "")), status)
    }

    /// A node that reads requests and answers none.
    pub(super) fn silent(&self) -> Node {
        self.answer_later(|_| std::future::pending())
    }

    /// A node that closes its connections after the head of a request.
    pub(super) fn closing(&self) -> Node {
        self.serve(async |mut client: Conversation| drop(client.request().await))
    }
}

/// The bytes of a response with a body.
pub(super) fn response(status: u16, fields: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A node. It refuses connections when it is dropped; open ones end with their holders.
pub(super) struct Node {
    pub(super) address: SocketAddr,
    listening: Rc<Listening>,
    requests: Rc<Cell<usize>>,
    network: Network,
}

impl Node {
    /// Returns how many requests it has got.
    pub(super) fn requests(&self) -> usize {
        self.requests.get()
    }

    /// Returns how many connections it has got.
    pub(super) fn connections(&self) -> usize {
        self.listening.connections.get()
    }

    /// Returns its address as it is written in a configuration.
    pub(super) fn name(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut nodes = self.network.nodes.borrow_mut();
        if nodes.get(&self.address).is_some_and(|listening| Rc::ptr_eq(listening, &self.listening)) {
            nodes.remove(&self.address);
        }
    }
}

/// The nodes of an upstream, each with the weight 1.
pub(super) fn nodes_of(nodes: &[&Node]) -> Value {
    Value::Object(nodes.iter().map(|node| (node.name(), 1.into())).collect())
}

/// Requests that wait at a node for the permission to be answered.
pub(super) struct Held {
    free: Semaphore,
    seen: RefCell<Vec<String>>,
}

impl Held {
    /// Returns a node with 200 for each permitted request, and its permissions.
    pub(super) fn node(network: &Network) -> (Node, Rc<Held>) {
        let held = Rc::new(Held { free: Semaphore::new(0), seen: RefCell::default() });
        let own = Rc::clone(&held);
        let node = network.answer_later(move |request| {
            let held = Rc::clone(&own);
            async move {
                held.seen.borrow_mut().push(request.get("x-name").unwrap_or_default().to_owned());
                if let Ok(permit) = held.free.acquire().await {
                    permit.forget();
                }
                response(200, "", "")
            }
        });
        (node, held)
    }

    /// Lets so many requests be answered.
    pub(super) fn let_go(&self, count: usize) {
        self.free.add_permits(count);
    }

    /// Returns how many requests have come.
    pub(super) fn seen(&self) -> usize {
        self.seen.borrow().len()
    }

    /// Returns the values of `X-Name` in the order of the requests.
    pub(super) fn names(&self) -> Vec<String> {
        self.seen.borrow().clone()
    }
}
