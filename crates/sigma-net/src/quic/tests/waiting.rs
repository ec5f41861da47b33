//! Streams whose bytes wait for a window of the peer.

use super::*;

fn waiting(connection: &Connection) -> usize {
    connection.shared().inner.borrow().waiting.len()
}

fn streams(connection: &Connection) -> usize {
    connection.shared().inner.borrow().streams.len()
}

#[test]
fn bytes_that_a_window_takes_at_once_wait_for_nothing() {
    run(async {
        let (near, far, _endpoints) = pair(QuicLimits::default()).await;
        for _ in 0..10 {
            let (mut to, mut from) = open(&near).await;
            send(&mut to, b"a").await.unwrap();
            to.finish();
            let stream = incoming(&far, Dir::Bi).await;
            let mut back = stream.send.unwrap();
            back.put(b"b".to_vec());
            back.finish();
            assert_eq!(read_all(&mut from).await.unwrap(), b"b");
            assert_eq!((waiting(&near), waiting(&far)), (0, 0));
        }
    });
}

#[test]
fn blocked_stream_waits_once_until_its_bytes_have_left() {
    run(async {
        let limits = QuicLimits { stream_window_bytes: 10_000, ..QuicLimits::default() };
        let (near, far, _endpoints) = pair(limits).await;
        let (mut to, _from) = open(&near).await;
        for _ in 0..3 {
            to.put(pattern(10_000));
        }
        assert_eq!((waiting(&near), near.held_bytes()), (1, 20_000));
        to.finish();
        let mut stream = incoming(&far, Dir::Bi).await;
        assert_eq!(read_all(&mut stream.recv).await.unwrap().len(), 30_000);
        assert_eq!((waiting(&near), near.held_bytes()), (0, 0));
    });
}

#[test]
fn stream_that_is_stopped_after_its_user_has_left_is_forgotten() {
    run(async {
        let limits = QuicLimits { stream_window_bytes: 10_000, ..QuicLimits::default() };
        let (near, far, _endpoints) = pair(limits).await;
        let before = streams(&near);
        let (mut to, from) = open(&near).await;
        to.put(pattern(30_000));
        to.finish();
        drop((to, from));
        assert_eq!((waiting(&near), streams(&near)), (1, before + 1));
        incoming(&far, Dir::Bi).await.recv.stop(7);
        while streams(&near) > before {
            tokio::task::yield_now().await;
        }
        assert_eq!((waiting(&near), near.held_bytes()), (0, 0));
    });
}
