//! A client's WebSocket, and the task on the control thread that answers its commands.

use std::io;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use prost::Message as _;
use sigma_http::Chunk;
use sigma_http::websocket::messages::Kind;
use sigma_plugin::{Node, Takeover};
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::consumer::{Consumer, Target};
use super::pubsub::{Command, Fetch, Fetched, ListOffset, Offset, PubSubResponse, Request, Response};
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::websocket::{Heard, Socket};

/// Most bytes of a command: a topic has 249, and a ping needs no more.
const COMMAND_BYTES: usize = 64 << 10;

/// The gateway cannot go on (RFC 6455 §7.4.1).
const BROKEN: u16 = 1011;

/// The worker's side. A client has one command under way; the next one is read when it gets a response.
pub(super) struct Session {
    socket: Socket,
    commands: Sender<Vec<u8>>,
    answers: Receiver<Vec<u8>>,
    is_asked: bool,
}

impl Session {
    /// One whose commands are answered from `target`.
    pub(super) fn begin(target: Target, node: &Arc<Node>) -> Session {
        let (commands, asked) = mpsc::channel(1);
        let (answered, answers) = mpsc::channel(1);
        let shared = Arc::clone(node);
        node.spawn(async move {
            serve(&Consumer::of(target, &shared), asked, answered).await;
        });
        Session { socket: Socket::new(COMMAND_BYTES), commands, answers, is_asked: false }
    }

    /// Passes on the client's messages, in their turn.
    fn go_on(&mut self) {
        while !self.is_asked
            && let Some(heard) = self.socket.receive()
        {
            match heard {
                Heard::Message(Kind::Binary, command) => {
                    self.is_asked = true;
                    if self.commands.try_send(command).is_err() {
                        self.socket.close(BROKEN, "");
                    }
                }
                Heard::Message(Kind::Text, _) => warn("a text frame"),
                Heard::Pong => {}
            }
        }
    }
}

impl Takeover for Session {
    fn poll_next(&mut self, task: &mut Task<'_>) -> Poll<io::Result<Option<Chunk>>> {
        loop {
            if let Poll::Ready(piece) = self.socket.poll_piece(task) {
                return Poll::Ready(Ok(piece));
            }
            match self.answers.poll_recv(task) {
                Poll::Ready(Some(answer)) => {
                    self.is_asked = false;
                    // It is ready for more, whether there is anything to send or not.
                    task.waker().wake_by_ref();
                    if !answer.is_empty() {
                        self.socket.send(Kind::Binary, &answer);
                    }
                    self.go_on();
                }
                // Closed already, it only ends.
                Poll::Ready(None) if self.socket.is_open() => self.socket.close(BROKEN, ""),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn poll_ready(&mut self, _task: &mut Task<'_>) -> Poll<io::Result<()>> {
        if self.socket.has_room() && !self.is_asked { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn take(&mut self, data: Chunk) {
        self.socket.take(data);
        self.go_on();
    }
}

/// Logs that something is ignored, as APISIX does.
fn warn(what: &str) {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::warn!(left_out, "kafka-proxy: {what} of a client is ignored");
    }
}

/// Answers commands, one at a time, until the client has left; nothing is an empty response.
async fn serve(consumer: &Consumer, mut commands: Receiver<Vec<u8>>, answers: Sender<Vec<u8>>) {
    while let Some(command) = commands.recv().await {
        let answer = tokio::select! {
            answer = respond(consumer, &command) => answer,
            () = answers.closed() => return,
        };
        let encoded = answer.map_or_else(Vec::new, |answer| answer.encode_to_vec());
        if answers.send(encoded).await.is_err() {
            return;
        }
    }
}

/// The response to a command; None for an ignored command.
async fn respond(consumer: &Consumer, command: &[u8]) -> Option<Response> {
    let Ok(Request { sequence, command }) = Request::decode(command) else {
        return Some(Response { sequence: 0, answer: Some(PubSubResponse::error("wrong command")) });
    };
    let Some(command) = command else {
        warn("an empty command");
        return None;
    };
    let answer = match command {
        Command::Ping(state) => PubSubResponse::Pong(state),
        Command::ListOffset(ListOffset { topic, partition, timestamp }) => {
            match consumer.offset(&topic, partition, timestamp).await {
                Ok(offset) => PubSubResponse::Offset(Offset { offset }),
                Err(error) => failed("list offset", &topic, partition, &error),
            }
        }
        Command::Fetch(Fetch { topic, partition, offset }) => {
            match consumer.fetch(&topic, partition, offset).await {
                Ok(messages) => PubSubResponse::Fetched(Fetched { messages }),
                Err(error) => failed("fetch message", &topic, partition, &error),
            }
        }
        Command::Empty(_) => PubSubResponse::error("unknown command"),
    };
    Some(Response { sequence, answer: Some(answer) })
}

fn failed(what: &str, topic: &str, partition: i32, error: &str) -> PubSubResponse {
    PubSubResponse::error(format!("failed to {what}, topic: {topic}, partition: {partition}, err: {error}"))
}
