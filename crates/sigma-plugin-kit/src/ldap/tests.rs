//! Directories that are slow, malicious or gone.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sigma_plugin::Local;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{Connection, Directory, DirectoryAddress, Security, ask};

/// Returns the result of a bind on a directory that sends these bytes for each received message, one after the other,
/// and then closes the connection. Without bytes it is silent.
async fn bind(answers: &'static [&'static [u8]], security: Security) -> Result<u32, String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = DirectoryAddress::try_from(listener.local_addr().unwrap().to_string()).unwrap();
    let directory = Arc::new(Directory::new(&place, 389, security, false, "test").unwrap());
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 512];
        for answer in answers {
            if stream.read(&mut request).await.unwrap() > 0 {
                stream.write_all(answer).await.unwrap();
            }
        }
        if answers.is_empty() {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    };
    let local = Rc::new(Local::new(0, 1));
    let question = async |connection: &mut Connection| connection.bind("cn=a", b"pw").await;
    let timeout = if answers.is_empty() { Duration::from_millis(200) } else { Duration::from_secs(20) };
    let asking = ask(directory, &local, 0, timeout, question);
    let (answered, ()) = tokio::join!(asking, serving);
    answered.map(|(code, _)| code).map_err(|failure| failure.0)
}

const BOUND: &[u8] = b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x00\x04\x00\x04\x00";

#[tokio::test]
async fn invalid_answers_are_rejected() {
    let check = async |answers: &'static [&'static [u8]], expected: Result<u32, &str>| {
        let got = bind(answers, Security::Cleartext).await;
        assert_eq!(got.as_ref().map(|code| *code).map_err(|text| &**text), expected, "{answers:?}");
    };
    check(&[BOUND], Ok(0)).await;
    const ELSE: Result<u32, &str> = Err("it sent an unexpected response");
    // To another request, of another kind, without end, and a notice of disconnection.
    check(&[b"\x30\x0c\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00\x04\x00"], ELSE).await;
    check(&[b"\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x00\x04\x00\x04\x00"], ELSE).await;
    check(&[b"\x30\x0c\x02\x01\x00\x78\x07\x0a\x01\x34\x04\x00\x04\x00"], ELSE).await;
    check(&[b"\x30\x02\x02\x00"], ELSE).await;
    check(&[b"\x30\x84\x7f\xff\xff\xff"], Err("a message is too long")).await;
    check(&[b"\x30\x80\x02\x01\x01"], Err("a length is indefinite or too large")).await;
    check(&[b"HTTP/1.1 400 Bad Request\r\n\r\n"], Err("the connection is closed")).await;
    check(&[b"\x30\x0c\x02\x01"], Err("the connection is closed")).await;
    check(&[], Err("no response within 200 ms")).await;
}

/// Bytes after the agreement on TLS and before the handshake may come from an attacker.
#[tokio::test]
async fn bytes_between_start_tls_and_the_handshake_are_rejected() {
    const AGREED: &[u8] = b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x00\x04\x00\x04\x00";
    const AGREED_AND_BOUND: &[u8] = b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x00\x04\x00\x04\x00\
        \x30\x0c\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00\x04\x00";
    const REFUSED: &[u8] = b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x34\x04\x00\x04\x00";
    let got = bind(&[AGREED_AND_BOUND], Security::StartTls).await;
    assert_eq!(got, Err("it sent cleartext after StartTLS".to_owned()));
    let got = bind(&[REFUSED], Security::StartTls).await;
    assert_eq!(got, Err("StartTLS is refused with 52".to_owned()));
    // A bind is never sent in cleartext, regardless of the directory's response.
    let got = bind(&[AGREED, BOUND], Security::StartTls).await;
    assert!(got.as_ref().is_err_and(|text| text.starts_with("no TLS session")), "{got:?}");
}
