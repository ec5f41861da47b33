//! Real sockets: one end by io_uring, the other by epoll on the same worker.

use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::*;
use crate::listen::{BoundSocket, Claim, Listening, Opened};
use crate::splice::Pipe;
use crate::stream::{Peer, Stream};
use crate::worker::{Io, spawn};

const SIZES: Sizes = Sizes { entries: 64, buffers: 64, buffer_bytes: 4096, is_restricted: true };

/// The longest wait of a test.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs `test` on a worker with a ring, unless this machine does not support one.
fn on_ring<F: Future<Output = ()>>(sizes: Sizes, test: impl FnOnce() -> F + Send + 'static) {
    let main = async move || {
        if is_active() {
            tokio::time::timeout(DEADLINE, test()).await.expect("in time");
        } else {
            eprintln!("this machine gives no io_uring: nothing is tested");
        }
    };
    spawn("test".into(), None, Io::Uring(sizes), false, main).expect("a thread").join().expect("the test");
}

/// Returns a connection: the end in the ring, and the other one.
async fn pair() -> (Stream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("listen");
    let dialled = Stream::dial_tcp(listener.local_addr().expect("address")).await.expect("dial");
    assert!(matches!(dialled, Stream::Uring(_)));
    (dialled, listener.accept().await.expect("accept").0)
}

/// Returns position-dependent bytes.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

async fn until(mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "in time");
        tokio::task::yield_now().await;
    }
}

fn is_deserted() -> bool {
    with_own(|ring| ring.is_deserted()).expect("a ring")
}

#[test]
fn stale_flag_of_the_kernel_holds_up_no_other_task() {
    on_ring(SIZES, || async {
        super::kernel::STALE_FLAG.set(true);
        let (mut near, mut far) = pair().await;
        for _ in 0..3 {
            // Nothing happens in the ring meanwhile: the worker sleeps, and the timer wakes it.
            let timer = tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>());
            timer.await.expect_err("the timer fires");
            far.write_all(b"ping").await.expect("write");
            near.read_exact(&mut [0; 4]).await.expect("read");
            near.write_all(b"pong").await.expect("write");
            far.read_exact(&mut [0; 4]).await.expect("read");
        }
        super::kernel::STALE_FLAG.set(false);
    });
}

#[test]
fn messages_go_both_ways_and_each_side_closes_separately() {
    on_ring(SIZES, || async {
        let (mut near, mut far) = pair().await;
        for length in [1, 100, 4096, 5000, 20_000] {
            let sent = pattern(length);
            let mut got = vec![0; length];
            far.write_all(&sent).await.expect("write");
            near.read_exact(&mut got).await.expect("read");
            assert_eq!(got, sent);
            near.write_all(&sent).await.expect("write");
            far.read_exact(&mut got).await.expect("read");
            assert_eq!(got, sent);
        }
        far.shutdown().await.expect("shut down");
        assert_eq!(near.read(&mut [0; 9]).await.expect("read"), 0);
        near.write_all(b"still heard").await.expect("write");
        near.shutdown().await.expect("shut down");
        let mut rest = String::new();
        far.read_to_string(&mut rest).await.expect("read");
        assert_eq!(rest, "still heard");
        assert_eq!(near.read(&mut [0; 9]).await.expect("read"), 0, "the end stays the end");
    });
}

#[test]
fn large_data_arrives_whole_and_waits_for_its_reader() {
    const LENGTH: usize = 32 << 20;
    on_ring(SIZES, || async {
        let (mut near, far) = pair().await;
        let (mut far_reads, mut far_writes) = far.into_split();
        let writes = tokio::task::spawn_local(async move {
            far_writes.write_all(&pattern(LENGTH)).await.expect("write");
        });
        // The peer does not read: the writer only fills the kernel's buffers and a few of ours.
        let mut first = [0; 1];
        near.read_exact(&mut first).await.expect("read");
        until(|| with_own(|ring| ring.stopped() == 1).expect("a ring")).await;
        assert!(!writes.is_finished(), "what nobody reads is not received");

        let mut got = vec![0; LENGTH];
        got[0] = first[0];
        near.read_exact(&mut got[1..]).await.expect("read");
        assert!(got == pattern(LENGTH), "received in order");
        writes.await.expect("the writer");

        let reads = tokio::task::spawn_local(async move {
            let mut got = Vec::new();
            far_reads.read_to_end(&mut got).await.expect("read");
            got
        });
        // In pieces with and without queueing.
        let mut left = &got[..];
        for length in [10, 3000, 200_000, 20, 16 * 1024, 70_000].into_iter().cycle() {
            let (piece, rest) = left.split_at(length.min(left.len()));
            near.write_all(piece).await.expect("write");
            left = rest;
            if rest.is_empty() {
                break;
            }
        }
        near.shutdown().await.expect("shut down");
        assert!(reads.await.expect("the reader") == got, "sent in order");
    });
}

#[test]
fn connections_that_hold_all_buffers_do_not_stop_others() {
    const CONNECTIONS: usize = 20;
    const LENGTH: usize = 300_000;
    on_ring(Sizes { buffers: 2, ..SIZES }, || async {
        let mut near = Vec::new();
        let mut writers = Vec::new();
        for _ in 0..CONNECTIONS {
            let (end, mut far) = pair().await;
            near.push(end);
            writers.push(tokio::task::spawn_local(async move {
                far.write_all(&pattern(LENGTH)).await.expect("write");
            }));
        }
        // All take as much as they can of the two buffers, then the last one reads before the first.
        for end in &mut near {
            end.read_exact(&mut [0; 1]).await.expect("read");
        }
        for mut end in near.into_iter().rev() {
            let mut got = vec![0; LENGTH - 1];
            end.read_exact(&mut got).await.expect("read");
            assert!(got == pattern(LENGTH)[1..]);
        }
        for writer in writers {
            writer.await.expect("the writer");
        }
    });
}

#[test]
fn written_bytes_are_sent_although_the_stream_is_dropped() {
    on_ring(SIZES, || async {
        for length in [1, 16 * 1024] {
            let (mut near, mut far) = pair().await;
            poll_fn(|cx| near.poll_write(cx, &pattern(length))).await.expect("write");
            drop(near);
            let mut got = Vec::new();
            far.read_to_end(&mut got).await.expect("read");
            assert_eq!(got, pattern(length));
        }
        until(is_deserted).await;
    });
}

#[test]
fn the_last_bytes_are_sent_although_the_worker_ends() {
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    on_ring(SIZES, || async move {
        let mut near = Stream::Uring(UringStream::adopt(near.into(), Family::Unix).expect("a ring"));
        poll_fn(|cx| near.poll_write(cx, b"good bye")).await.expect("write");
    });
    let mut far = far;
    let mut got = String::new();
    std::io::Read::read_to_string(&mut far, &mut got).expect("read");
    assert!(got == "good bye" || got.is_empty(), "{got}: empty only where nothing is tested");
}

#[test]
fn a_peer_that_does_not_read_is_dropped_some_time_after_the_stream() {
    on_ring(SIZES, || async {
        let (near, mut far) = pair().await;
        let Stream::Uring(mut stream) = near else { panic!("by the ring") };
        let fill = |socket: BorrowedFd<'_>| {
            let flags = rustix::net::SendFlags::DONTWAIT;
            while rustix::net::send(socket, &[7; 65_536], flags).is_ok() {}
        };
        stream.with_socket(fill).expect("a socket");
        poll_fn(|cx| stream.poll_write(cx, b"too much")).await.expect("queued");
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(stream.poll_flush(&mut cx).is_ready(), "it leaves with the turn");
        until(|| stream.poll_flush(&mut cx).is_pending()).await;
        assert!(stream.poll_write(&mut cx, b"more").is_pending());
        drop(stream);
        until(is_deserted).await;
        let mut got = Vec::new();
        // As an end or a reset.
        let _ = far.read_to_end(&mut got).await;
        assert!(got.iter().all(|byte| *byte == 7), "what had no room was not sent");
    });
}

#[test]
fn a_full_socket_continues_when_there_is_room() {
    on_ring(SIZES, || async {
        let (mut near, mut far) = pair().await;
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let piece = vec![7; 100_000];
        let mut written = 0;
        while let Poll::Ready(n) = near.poll_write(&mut cx, &piece) {
            written += n.expect("write");
        }
        let reads = tokio::task::spawn_local(async move {
            let mut got = Vec::new();
            far.read_to_end(&mut got).await.expect("read");
            got.len()
        });
        near.write_all(&piece).await.expect("write");
        near.shutdown().await.expect("shut down");
        assert_eq!(reads.await.expect("the reader"), written + piece.len());
    });
}

#[test]
fn an_idle_connection_is_quiet_until_the_peer_sends_or_closes() {
    on_ring(SIZES, || async {
        let (mut near, mut far) = pair().await;
        assert!(near.is_quiet() && near.is_quiet());
        far.write_all(b"x").await.expect("write");
        until(|| !near.is_quiet()).await;
        let (mut near, far) = pair().await;
        assert!(near.is_quiet());
        drop(far);
        until(|| !near.is_quiet()).await;
    });
}

#[test]
fn a_reader_sees_a_reset_of_the_peer() {
    on_ring(SIZES, || async {
        let (mut near, far) = pair().await;
        socket2::SockRef::from(&far).set_linger(Some(Duration::ZERO)).expect("an option");
        drop(far);
        let error = near.read(&mut [0; 9]).await.expect_err("a reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        until(|| matches!(near.poll_write(&mut cx, b"x"), Poll::Ready(Err(_)))).await;
        assert!(matches!(near.poll_flush(&mut cx), Poll::Ready(Err(_))));
    });
}

#[test]
fn slots_are_reused_and_sockets_closed() {
    on_ring(SIZES, || async {
        for n in 0..50 {
            let (near, mut far) = pair().await;
            let mut chunk = sigma_buffer::Chunk::empty();
            let mut near = near;
            if n % 2 == 0 {
                // Dropped while the kernel receives, in other rounds before it starts.
                let mut cx = Context::from_waker(std::task::Waker::noop());
                assert!(near.poll_fill(&mut cx, &mut chunk).is_pending());
            }
            drop(near);
            assert_eq!(far.read(&mut [0; 9]).await.expect("read"), 0);
            until(is_deserted).await;
        }
        assert!(with_own(|ring| ring.slots()).expect("a ring") <= 2);
    });
}

#[test]
fn more_connections_than_entries_are_served_at_once() {
    const CONNECTIONS: usize = 200;
    on_ring(Sizes { entries: 4, buffers: 16, ..SIZES }, || async {
        let mut tasks = Vec::new();
        for n in 0..CONNECTIONS {
            let (mut near, mut far) = pair().await;
            tasks.push(tokio::task::spawn_local(async move {
                let sent = pattern(n + 1);
                near.write_all(&sent).await.expect("write");
                let mut got = vec![0; sent.len()];
                far.read_exact(&mut got).await.expect("read");
                far.write_all(&got).await.expect("write");
                near.read_exact(&mut got).await.expect("read");
                assert_eq!(got, sent);
            }));
        }
        for task in tasks {
            task.await.expect("a connection");
        }
        until(is_deserted).await;
    });
}

fn connections(bound: BoundSocket) -> Listening {
    match bound.open() {
        Ok(Opened::Connections(listening)) => listening,
        other => panic!("{other:?}"),
    }
}

#[test]
fn clients_are_accepted_with_their_addresses() {
    on_ring(SIZES, || async {
        let bound =
            BoundSocket::tcp((Ipv4Addr::LOCALHOST, 0).into(), 8, Claim::First, &crate::TcpOptions::default())
                .expect("bind");
        let addr = bound.local_addr().expect("address");
        let listening = connections(bound);
        assert_eq!(listening.fixed_addr(), Some(addr));
        let client = TcpStream::connect(addr).await.expect("connect");
        let (stream, peer) = listening.accept().await.expect("accept");
        assert!(matches!(stream, Stream::Uring(_)));
        assert_eq!(peer, Peer::from_tcp(client.local_addr().expect("address")));
        assert_eq!((stream.local_addr(), stream.is_last_for_clients()), (Some(addr), false));

        let dir = std::env::temp_dir().join(format!("sigma-uring-{}", std::process::id()));
        let listening = connections(BoundSocket::unix(&dir).expect("bind"));
        let mut client = Stream::dial_unix(&dir).await.expect("connect");
        let (mut stream, peer) = listening.accept().await.expect("accept");
        assert_eq!((peer, stream.local_addr(), listening.fixed_addr()), (Peer::Unix, None, None));
        client.write_all(b"hello").await.expect("write");
        stream.read_exact(&mut [0; 5]).await.expect("read");
        std::fs::remove_file(&dir).expect("remove");
    });
}

#[test]
fn a_connection_of_another_worker_fails() {
    on_ring(SIZES, || async {
        let (near, mut far) = pair().await;
        let elsewhere = std::thread::spawn(move || {
            let mut near = near;
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(matches!(near.poll_write(&mut cx, b"x"), Poll::Ready(Err(_))));
            near
        });
        let mut near = elsewhere.join().expect("the thread");
        near.write_all(b"here").await.expect("write");
        far.read_exact(&mut [0; 4]).await.expect("read");
    });
}

#[test]
fn a_ring_that_has_failed_is_replaced() {
    on_ring(SIZES, || async {
        let (mut near, _far) = pair().await;
        let waits = tokio::task::spawn_local(async move { near.read(&mut [0; 9]).await.map(|_| ()) });
        tokio::task::yield_now().await;
        // The effect of a failure.
        assert_eq!(end(), 0);
        waits.await.expect("the reader").expect_err("its ring is gone");
        begin(SIZES, 1).expect("a ring");
        tokio::task::spawn_local(run(SIZES));
        let (mut near, mut far) = pair().await;
        far.write_all(b"x").await.expect("write");
        assert_eq!(near.read(&mut [0; 9]).await.expect("read"), 1);
    });
}

#[test]
fn a_unix_socket_works_as_well() {
    on_ring(SIZES, || async {
        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        let socket = near.into_std().expect("a socket").into();
        let mut near = Stream::Uring(UringStream::adopt(socket, Family::Unix).expect("a ring"));
        far.write_all(b"hello").await.expect("write");
        near.read_exact(&mut [0; 5]).await.expect("read");
        assert_eq!(near.local_addr(), None);
    });
}

/// Two streams in the ring, and their other ends: what arrives at the first one is to leave by the second one.
async fn passage() -> [(Stream, TcpStream); 2] {
    [pair().await, pair().await]
}

/// Moves the next bytes from one stream to the other by a pipe; returns their number.
async fn pass_on(from: &mut Stream, to: &mut Stream) -> usize {
    let mut pipe = Pipe::take().expect("a pipe");
    let moved = poll_fn(|cx| from.poll_splice_into(cx, &mut pipe, usize::MAX)).await.expect("in order");
    while pipe.held() > 0 {
        assert_ne!(poll_fn(|cx| to.poll_splice_from(cx, &mut pipe)).await.expect("in order"), 0);
    }
    moved
}

#[test]
fn bytes_pass_between_rings_by_a_pipe() {
    const LENGTH: usize = 8 << 20;
    on_ring(SIZES, || async {
        let [(mut from, sender), (mut to, mut receiver)] = passage().await;
        let (mut sender_reads, mut sender) = sender.into_split();
        // The kernel receives these bytes into a buffer, and the next ones are queued for the other stream.
        sender.write_all(b"head and body").await.expect("write");
        let mut head = [0; 5];
        from.read_exact(&mut head).await.expect("read");
        to.write_all(&head).await.expect("write");
        let sends = tokio::task::spawn_local(async move {
            sender.write_all(&pattern(LENGTH)).await.expect("write");
            sender
        });
        let receives = tokio::task::spawn_local(async move {
            let mut got = Vec::new();
            receiver.read_to_end(&mut got).await.map(|_| (got, receiver)).expect("read")
        });
        let mut left = LENGTH + b"and body".len();
        while left > 0 {
            left -= pass_on(&mut from, &mut to).await;
        }
        // Small messages go on by buffers, in both directions.
        let mut sender = sends.await.expect("the sender");
        sender.write_all(b"tail").await.expect("write");
        let mut tail = [0; 4];
        from.read_exact(&mut tail).await.expect("read");
        to.write_all(&tail).await.expect("write");
        from.write_all(b"answer").await.expect("write");
        sender_reads.read_exact(&mut [0; 6]).await.expect("read");
        drop((sender, sender_reads));
        assert_eq!(pass_on(&mut from, &mut to).await, 0, "the end of the stream");
        to.shutdown().await.expect("shut down");
        let (got, _) = receives.await.expect("the receiver");
        assert!(got == [b"head and body", &pattern(LENGTH)[..], b"tail"].concat(), "all bytes, in order");
    });
}

#[test]
fn a_pipe_waits_for_bytes_and_for_room() {
    on_ring(SIZES, || async {
        let [(mut from, mut sender), (mut to, mut receiver)] = passage().await;
        let mut pipe = Pipe::take().expect("a pipe");
        // Neither before the receive by the ring, nor while it is cancelled, are there bytes.
        let mut noop = Context::from_waker(std::task::Waker::noop());
        assert!(from.poll_fill(&mut noop, &mut sigma_buffer::Chunk::empty()).is_pending());
        assert!(from.poll_splice_into(&mut noop, &mut pipe, 9).is_pending());
        sender.write_all(b"hello").await.expect("write");
        assert_eq!(poll_fn(|cx| from.poll_splice_into(cx, &mut pipe, 3)).await.expect("read"), 3);
        // The socket has no room until its peer reads.
        let mut written = 0;
        let bytes = pattern(1 << 20);
        while let Poll::Ready(n) = poll_fn(|cx| Poll::Ready(to.poll_write(cx, &bytes))).await {
            written += n.expect("write");
        }
        assert!(poll_fn(|cx| Poll::Ready(to.poll_splice_from(cx, &mut pipe))).await.is_pending());
        let reads = tokio::task::spawn_local(async move {
            let mut got = vec![0; written + 3];
            receiver.read_exact(&mut got).await.map(|_| got).expect("read")
        });
        while pipe.held() > 0 {
            poll_fn(|cx| to.poll_splice_from(cx, &mut pipe)).await.expect("write");
        }
        assert_eq!(&reads.await.expect("the reader")[written..], b"hel");
    });
}

#[test]
fn connections_use_a_ring_while_it_pays() {
    let main = async || {
        if !is_active() {
            eprintln!("this machine gives no io_uring: nothing is tested");
            return;
        }
        let socket =
            BoundSocket::tcp((Ipv4Addr::LOCALHOST, 0).into(), 8, Claim::First, &crate::TcpOptions::default());
        let socket = socket.expect("a socket");
        let addr = socket.local_addr().expect("an address");
        let listening = connections(socket);
        for (open, by_ring) in [(0, false), (PAYS_FROM, true), (PAYS_FROM - 1, false)] {
            note_connections(open);
            let mut dialled = Stream::dial_tcp(addr).await.expect("dial");
            let (mut accepted, peer) = listening.accept().await.expect("accept");
            assert_eq!([&dialled, &accepted].map(|stream| matches!(stream, Stream::Uring(_))), [by_ring; 2]);
            assert!(matches!(peer, Peer::Ip(_)));
            dialled.write_all(b"hello").await.expect("write");
            accepted.read_exact(&mut [0; 5]).await.expect("read");
        }
    };
    spawn("test".into(), None, Io::Auto(SIZES), false, main).expect("a thread").join().expect("the test");
}
