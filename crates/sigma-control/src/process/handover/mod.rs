//! The handover of a gateway's state to the process that replaces it.
//!
//! The successor has checked its configuration when it says hello. The predecessor then releases exclusive
//! resources, and gives the rest: sockets, and state. It continues serving until the successor is ready; if
//! that fails, it takes the released resources back, and nothing has changed.
//!
//! | successor | predecessor |
//! |---|---|
//! | `hello` | |
//! | | `refused`, or `sockets` with descriptors, then `state` with a file |
//! | `ready` or `failed` | |
//! | | `sessions` with descriptors, if the successor takes them |
//! | | `leaving`; it drains |
//!
//! An upgrade, the next gateway of a parent and a start into the background are the same dialogue with another
//! predecessor.

mod channel;
mod origin;
mod state;

pub(crate) use channel::Channel;
use channel::DESCRIPTORS;
pub use origin::Origin;
pub(crate) use origin::{Links, left_open};
pub(crate) use state::State;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sigma_proxy::{Passing, UdpSession};

/// The version of the protocol of both sides.
pub(crate) const PROTOCOL: u32 = 1;

/// The longest reason that is sent; the start of a longer one names the problem.
const WHY_CHARS: usize = 8 << 10;

/// How long the successor may take to take the sessions over UDP. No process receives datagrams meanwhile.
const PASSING: Duration = Duration::from_secs(1);

/// The messages of both sides.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
enum Word {
    /// The successor is there, with a configuration that it can serve.
    Hello {
        protocol: u32,
        version: String,
        /// One of an earlier version says nothing of sessions, and takes none.
        #[serde(default)]
        takes_sessions: bool,
    },
    /// The predecessor gives nothing.
    Refused { why: String },
    /// Some of the sockets, as descriptors.
    Sockets,
    /// These were all sockets. State is in a file in memory, if there is any.
    State,
    /// The successor serves.
    Ready,
    /// Sessions over UDP, each with its descriptor. The predecessor receives no more datagrams.
    Sessions { sessions: Vec<UdpSession>, are_all: bool },
    /// The successor ends.
    Failed { why: String },
    /// The pid file is the successor's now.
    Leaving,
}

/// The possessions of a predecessor.
pub(crate) trait Estate {
    /// Releases exclusive resources, and returns the sockets and the state.
    ///
    /// # Errors
    /// Returns an error if it cannot be given; nothing has changed then.
    async fn give(&mut self) -> io::Result<(Vec<OwnedFd>, Option<State>)>;

    /// There is no successor after all: takes the released resources back.
    async fn take_back(&mut self);
}

/// The successor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heir {
    pub(crate) version: String,
    pub(crate) takes_sessions: bool,
}

/// Hands over to the process at the other end, until it is ready. It returns the successor.
///
/// # Errors
/// Returns an error that says why there is no successor.
pub(crate) async fn bequeath(channel: &Channel, estate: &mut impl Estate) -> Result<Heir, String> {
    let mut given = Given { estate, is_given: false };
    let result = converse(channel, &mut given).await;
    if result.is_err() && given.is_given {
        given.estate.take_back().await;
    }
    result
}

struct Given<'a, E> {
    estate: &'a mut E,
    is_given: bool,
}

async fn converse<E: Estate>(channel: &Channel, given: &mut Given<'_, E>) -> Result<Heir, String> {
    let lost = |error: io::Error| format!("cannot write to the successor: {error}");
    let heir = match hear(channel).await? {
        Word::Hello { protocol: PROTOCOL, version, takes_sessions } => Heir { version, takes_sessions },
        Word::Hello { protocol, version, .. } => {
            let why = format!(
                "this process (version {}) uses protocol {PROTOCOL} for upgrades, version {version} uses {protocol}: stop the old process and start the new one",
                env!("CARGO_PKG_VERSION")
            );
            channel.say(&Word::Refused { why: why.clone() }, &[]).await.map_err(lost)?;
            return Err(why);
        }
        Word::Failed { why } => return Err(why),
        word => return Err(format!("it said {word:?}")),
    };
    given.is_given = true;
    let (sockets, state) = match given.estate.give().await {
        Ok(all) => all,
        Err(error) => {
            let why = format!("cannot hand over the state: {error}");
            channel.say(&Word::Refused { why: why.clone() }, &[]).await.map_err(lost)?;
            return Err(why);
        }
    };
    channel.say(&Word::Sockets, &sockets).await.map_err(lost)?;
    let file = state.map(|state| state.to_file()).transpose().map_err(lost)?;
    channel.say(&Word::State, file.as_slice()).await.map_err(lost)?;
    match hear(channel).await? {
        Word::Ready => {}
        Word::Failed { why } => return Err(why),
        word => return Err(format!("it said {word:?}")),
    }
    Ok(heir)
}

async fn hear(channel: &Channel) -> Result<Word, String> {
    match channel.hear().await {
        Ok(Some((word, _))) => Ok(word),
        Ok(None) => Err("it ended before it was ready".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Gives the successor sessions over UDP, which these were all of.
pub(crate) async fn pass(channel: &Channel, passing: Vec<Passing>) {
    let count = passing.len();
    let (sessions, sockets): (Vec<UdpSession>, Vec<OwnedFd>) =
        passing.into_iter().map(|Passing { session, socket }| (session, socket)).unzip();
    let mut parts = sessions.chunks(DESCRIPTORS).zip(sockets.chunks(DESCRIPTORS)).peekable();
    let mut passed = async || {
        while let Some((sessions, sockets)) = parts.next() {
            let word = Word::Sessions { sessions: sessions.to_vec(), are_all: parts.peek().is_none() };
            channel.say(&word, sockets).await?;
        }
        if count == 0 {
            channel.say(&Word::Sessions { sessions: Vec::new(), are_all: true }, &[]).await?;
        }
        Ok::<_, io::Error>(())
    };
    match tokio::time::timeout(PASSING, passed()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "cannot hand over UDP sessions to the successor: they end"),
        Err(_) => tracing::error!("the successor does not accept UDP sessions: they end"),
    }
}

/// Tells the successor that it has the pid file to itself.
pub(crate) async fn leave(channel: &Channel) {
    // It serves, whether or not it hears that.
    let _ = channel.say(&Word::Leaving, &[]).await;
}

/// Requests the predecessor's possessions: sockets, and state, if it has any.
///
/// # Errors
/// Returns an error if it gives nothing.
pub(crate) async fn inherit(channel: &Channel) -> io::Result<(Vec<OwnedFd>, Option<State>)> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let hello = Word::Hello { protocol: PROTOCOL, version, takes_sessions: true };
    channel.say(&hello, &[]).await?;
    let mut sockets = Vec::new();
    loop {
        match channel.hear().await? {
            Some((Word::Sockets, more)) => sockets.extend(more),
            Some((Word::State, file)) => {
                return Ok((sockets, file.into_iter().next().map(State::from_file)));
            }
            Some((Word::Refused { why }, _)) => return Err(io::Error::other(why)),
            Some((word, _)) => return Err(io::Error::other(format!("the predecessor sent {word:?}"))),
            None => return Err(io::Error::other("the predecessor ended")),
        }
    }
}

/// Reports to the predecessor that this process serves, and waits until it leaves. The UDP sessions of the
/// predecessor are given to `take`, which is called once, and as early as possible: no datagram is received
/// before.
pub(crate) async fn take_place(channel: &Channel, take: impl FnOnce(Vec<Passing>)) {
    let mut passing = Vec::new();
    let mut has_left = channel.say(&Word::Ready, &[]).await.is_err();
    let heard = async {
        while !has_left {
            match channel.hear().await {
                Ok(Some((Word::Sessions { sessions, are_all }, sockets))) => {
                    let pairs = sessions.into_iter().zip(sockets);
                    passing.extend(pairs.map(|(session, socket)| Passing { session, socket }));
                    if are_all {
                        return;
                    }
                }
                // Its last word, or its end: this process is alone either way.
                _ => has_left = true,
            }
        }
    };
    if tokio::time::timeout(PASSING * 2, heard).await.is_err() {
        tracing::error!("the previous process does not hand over its UDP sessions: they start again");
    }
    take(passing);
    while !has_left {
        has_left = !matches!(channel.hear().await, Ok(Some((Word::Sessions { .. }, _))));
    }
}

/// The last word of a successor that ends.
fn failed(why: &str) -> Word {
    Word::Failed { why: why.chars().take(WHY_CHARS).collect() }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[derive(Default)]
    struct Heirloom {
        given: u32,
        taken_back: u32,
        fails: bool,
    }

    impl Estate for Heirloom {
        async fn give(&mut self) -> io::Result<(Vec<OwnedFd>, Option<State>)> {
            self.given += 1;
            if self.fails {
                return Err(io::Error::other("no descriptors are left"));
            }
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut state = State::default();
            state.counters.insert("requests".to_owned(), 7);
            Ok((vec![socket.into()], Some(state)))
        }

        async fn take_back(&mut self) {
            self.taken_back += 1;
        }
    }

    /// Checks the predecessor after the successor does this.
    async fn check(
        fails: bool,
        successor: impl AsyncFnOnce(Channel),
        expected: Result<(), &str>,
        taken_back: u32,
    ) {
        let (here, there) = Channel::pair().unwrap();
        let there = Channel::over(there).unwrap();
        let mut estate = Heirloom { fails, ..Heirloom::default() };
        let (result, ()) = tokio::join!(
            async {
                let result = bequeath(&here, &mut estate).await;
                if result.is_ok() {
                    leave(&here).await;
                }
                drop(here);
                result
            },
            successor(there)
        );
        match expected {
            Ok(()) => {
                let version = env!("CARGO_PKG_VERSION").to_owned();
                assert_eq!(result.unwrap(), Heir { version, takes_sessions: true });
            }
            Err(word) => assert!(result.as_ref().unwrap_err().contains(word), "{result:?}"),
        }
        assert_eq!(estate.taken_back, taken_back);
    }

    #[tokio::test]
    async fn a_successor_gets_everything_and_takes_the_place() {
        let takes = async |channel: Channel| {
            let (sockets, state) = inherit(&channel).await.unwrap();
            assert_eq!((sockets.len(), state.unwrap().counters["requests"]), (1, 7));
            let mut passed = None;
            take_place(&channel, |sessions| passed = Some(sessions.len())).await;
            assert_eq!(passed, Some(0));
        };
        check(false, takes, Ok(()), 0).await;
    }

    /// More than one word has room for, in the order in which they were given.
    #[tokio::test]
    async fn sessions_pass_with_their_descriptors() {
        for count in [0, 1, DESCRIPTORS, 2 * DESCRIPTORS + 1] {
            let (here, there) = Channel::pair().unwrap();
            let there = Channel::over(there).unwrap();
            let sockets: Vec<std::net::UdpSocket> =
                (0..count).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
            let session = |socket: &std::net::UdpSocket| UdpSession {
                listening: 7,
                peer: socket.local_addr().unwrap(),
                local: None,
                node: ([127, 0, 0, 1], 9).into(),
                asked: 3,
                answered: 2,
                quiet_ms: 1,
            };
            let passing = sockets
                .iter()
                .map(|own| Passing { session: session(own), socket: own.try_clone().unwrap().into() });
            let passing = passing.collect();
            let mut taken = Vec::new();
            let give = async {
                assert!(matches!(here.hear::<Word>().await, Ok(Some((Word::Ready, _)))));
                pass(&here, passing).await;
                leave(&here).await;
            };
            tokio::join!(give, take_place(&there, |sessions| taken = sessions));
            assert_eq!(taken.len(), count);
            for (Passing { session: found, socket }, own) in taken.into_iter().zip(&sockets) {
                assert_eq!(found, session(own));
                assert_eq!(
                    std::net::UdpSocket::from(socket).local_addr().unwrap(),
                    own.local_addr().unwrap()
                );
            }
        }
    }

    /// Parent, predecessor and successor may be of several versions.
    #[test]
    fn a_successor_that_says_nothing_of_sessions_takes_none() {
        let said = r#"{"word":"hello","protocol":1,"version":"0.1.0"}"#;
        let heard = serde_json::from_str::<Word>(said).unwrap();
        assert!(matches!(heard, Word::Hello { takes_sessions: false, .. }), "{heard:?}");
    }

    #[tokio::test]
    async fn after_any_failure_the_predecessor_has_everything_back() {
        check(false, async |channel| drop(channel), Err("before it was ready"), 0).await;
        let dies_late = async |channel: Channel| drop(inherit(&channel).await.unwrap());
        check(false, dies_late, Err("before it was ready"), 1).await;
        let says_why = async |channel: Channel| {
            drop(inherit(&channel).await.unwrap());
            channel.say(&failed(&"the port is taken ".repeat(5_000)), &[]).await.unwrap();
        };
        check(false, says_why, Err("the port is taken"), 1).await;
        let is_invalid = async |channel: Channel| channel.say(&failed("line 7"), &[]).await.unwrap();
        check(false, is_invalid, Err("line 7"), 0).await;
        let is_newer = async |channel: Channel| {
            let version = "9.9".to_owned();
            let hello = Word::Hello { protocol: PROTOCOL + 1, version, takes_sessions: true };
            channel.say(&hello, &[]).await.unwrap();
            assert!(matches!(channel.hear().await, Ok(Some((Word::Refused { .. }, _)))));
        };
        check(false, is_newer, Err("9.9"), 0).await;
        let is_refused = async |channel: Channel| assert!(inherit(&channel).await.is_err());
        check(true, is_refused, Err("no descriptors"), 1).await;
        let talks = async |channel: Channel| channel.say(&Word::Leaving, &[]).await.unwrap();
        check(false, talks, Err("Leaving"), 0).await;
        let mumbles = async |channel: Channel| channel.say(&"what?", &[]).await.unwrap();
        check(false, mumbles, Err("invalid type"), 0).await;
    }
}
