//! A scripted test server: it sends given responses, and records requests.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sigma_config::discovery::RegistryAddress;
use sigma_testkit::{Message, Origin};

/// Sends responses in their order, over any number of connections.
pub(crate) struct Scripted {
    origin: Origin,
    answers: Sender<Vec<u8>>,
    asked: Receiver<Message>,
}

impl Scripted {
    pub(crate) fn start() -> Scripted {
        let (answers, next) = channel::<Vec<u8>>();
        let (tell, asked) = channel();
        let (next, tell) = (Mutex::new(next), Mutex::new(tell));
        let origin = Origin::answer(move |request| {
            // A response without a receiver counts as sent.
            let _ = tell.lock().expect("a test that runs").send(request.clone());
            next.lock().expect("a test that runs").recv().unwrap_or_default()
        });
        Scripted { origin: origin.expect("a server"), answers, asked }
    }

    pub(crate) fn address(&self) -> RegistryAddress {
        format!("http://127.0.0.1:{}", self.origin.port()).parse().expect("an address")
    }

    /// Adds the next response; `head` are whole lines.
    pub(crate) fn answer(&self, status: &str, head: &str, body: &str) {
        let length = body.len();
        let text = format!("HTTP/1.1 {status}\r\n{head}Content-Length: {length}\r\n\r\n{body}");
        self.answers.send(text.into_bytes()).expect("a server");
    }

    /// Returns the next request.
    pub(crate) fn question(&self) -> Message {
        self.asked.recv_timeout(Duration::from_secs(20)).expect("a question")
    }

    /// Returns the target and a field of the next request.
    pub(crate) fn asked(&self, field: &str) -> (String, Option<String>) {
        let message = self.question();
        let (_, target) = message.head.request_line().expect("a request");
        (target.to_owned(), message.head.get(field).map(str::to_owned))
    }
}
