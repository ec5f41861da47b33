//! A client of SMTP (RFC 5321), as far as one mail needs it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sigma_net::Stream;
use sigma_net::tls::ClientTls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Largest reply of a server; RFC 5321 allows lines of 512 bytes.
const REPLY_BYTES_MAX: usize = 16 * 1024;

/// A mail with its envelope.
pub(super) struct Mail<'m> {
    pub(super) from: &'m str,
    pub(super) to: &'m [String],
    /// Fields and body, with lines that end in CRLF.
    pub(super) text: &'m str,
}

/// A connection to a server.
pub(super) struct Connection {
    stream: Stream,
    unread: Vec<u8>,
    /// The lines of the last reply, without their code.
    lines: Vec<String>,
}

impl Connection {
    /// Reads the greeting of a server.
    ///
    /// # Errors
    /// Returns the reason if the server does not greet.
    pub(super) async fn greet(stream: Stream) -> Result<Connection, String> {
        let mut connection = Connection { stream, unread: Vec::new(), lines: Vec::new() };
        connection.expect("the greeting", &[220]).await?;
        Ok(connection)
    }

    /// Introduces this client.
    ///
    /// # Errors
    /// Returns the reason if the server refuses it.
    pub(super) async fn introduce(&mut self) -> Result<(), String> {
        let name = match self.stream.local_addr().map(|addr| addr.ip().to_canonical()) {
            Some(std::net::IpAddr::V6(ip)) => format!("[IPv6:{ip}]"),
            Some(ip) => format!("[{ip}]"),
            None => "[127.0.0.1]".to_owned(),
        };
        self.command(&format!("EHLO {name}"), "EHLO", &[250]).await
    }

    /// Changes to TLS.
    ///
    /// # Errors
    /// Returns the reason if the server offers none, or the handshake fails.
    pub(super) async fn start_tls(mut self, tls: &ClientTls, host: &str) -> Result<Connection, String> {
        if !self.lines.iter().any(|line| line.eq_ignore_ascii_case("STARTTLS")) {
            return Err("the server offers no STARTTLS; use `security: tls` on its port for TLS".to_owned());
        }
        self.command("STARTTLS", "STARTTLS", &[220]).await?;
        if !self.unread.is_empty() {
            return Err("the server sent extra bytes before TLS began".to_owned());
        }
        let stream = tls.shake(self.stream, host).await.map_err(|error| format!("TLS: {error}"))?;
        Ok(Connection { stream, unread: Vec::new(), lines: Vec::new() })
    }

    /// Proves the identity of this client (RFC 4616).
    ///
    /// # Errors
    /// Returns the reason, without the secret, if the server refuses it.
    pub(super) async fn authenticate(&mut self, user: &str, password: &str) -> Result<(), String> {
        let secret = STANDARD.encode(format!("\0{user}\0{password}"));
        self.command(&format!("AUTH PLAIN {secret}"), "AUTH", &[235]).await
    }

    /// Sends a mail and ends the session.
    ///
    /// # Errors
    /// Returns the reason if the server does not take it for every recipient.
    pub(super) async fn send(mut self, mail: &Mail<'_>) -> Result<(), String> {
        self.command(&format!("MAIL FROM:<{}>", mail.from), "MAIL", &[250]).await?;
        for to in mail.to {
            self.command(&format!("RCPT TO:<{to}>"), "RCPT", &[250, 251]).await?;
        }
        self.command("DATA", "DATA", &[354]).await?;
        let text = format!("{}.\r\n", stuffed(mail.text));
        self.write(&text).await?;
        self.expect("the mail", &[250]).await?;
        // The mail is accepted, whatever happens from here on.
        let _ = self.command("QUIT", "QUIT", &[221]).await;
        Ok(())
    }

    async fn command(&mut self, line: &str, name: &str, expected: &[u16]) -> Result<(), String> {
        self.write(&format!("{line}\r\n")).await?;
        self.expect(name, expected).await
    }

    async fn write(&mut self, text: &str) -> Result<(), String> {
        let written = async {
            self.stream.write_all(text.as_bytes()).await?;
            self.stream.flush().await
        };
        written.await.map_err(|error| format!("the connection ended: {error}"))
    }

    /// Reads a reply, whose code must be expected.
    async fn expect(&mut self, name: &str, expected: &[u16]) -> Result<(), String> {
        loop {
            if let Some((code, lines, len)) = parse(&self.unread)? {
                self.unread.drain(..len);
                let text = lines.last().cloned().unwrap_or_default();
                self.lines = lines;
                return match expected.contains(&code) {
                    true => Ok(()),
                    false => Err(format!("the server responded to {name} with {code} {text}")),
                };
            }
            if self.unread.len() > REPLY_BYTES_MAX {
                return Err(format!("the reply to {name} is longer than {REPLY_BYTES_MAX} bytes"));
            }
            let read = self.stream.read_buf(&mut self.unread).await;
            match read.map_err(|error| format!("the connection ended: {error}"))? {
                0 => return Err(format!("the server closed the connection at {name}")),
                _ => continue,
            }
        }
    }
}

/// A reply: its code, its lines and its length; None while it is incomplete.
type Reply = Option<(u16, Vec<String>, usize)>;

fn parse(bytes: &[u8]) -> Result<Reply, String> {
    let mut lines = Vec::new();
    let mut len = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let Some(text) = line.strip_suffix(b"\n") else { return Ok(None) };
        len += line.len();
        let text = String::from_utf8_lossy(text.strip_suffix(b"\r").unwrap_or(text)).into_owned();
        let code = text.get(..3).and_then(|code| code.parse::<u16>().ok());
        let (Some(code), mark) = (code, text.as_bytes().get(3).copied()) else {
            return Err("the server does not speak SMTP".to_owned());
        };
        // Control characters of a server must not reach the error log.
        let shown = text.get(4..).unwrap_or_default().chars().filter(|c| !c.is_control()).take(200).collect();
        lines.push(shown);
        if mark != Some(b'-') {
            return Ok(Some((code, lines, len)));
        }
    }
    Ok(None)
}

/// Doubles a dot at the beginning of a line (RFC 5321 §4.5.2).
fn stuffed(text: &str) -> String {
    let line = |line: &str| if line.starts_with('.') { format!(".{line}") } else { line.to_owned() };
    text.split_inclusive("\r\n").map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_parsed() {
        let check =
            |bytes: &str, expected: Reply| assert_eq!(parse(bytes.as_bytes()), Ok(expected), "{bytes}");
        check("", None);
        check("250", None);
        check("250 ok\r\n", Some((250, vec!["ok".to_owned()], 8)));
        check("250-a\r\n250-STARTTLS\r\n", None);
        check("250-a\r\n250 STARTTLS\r\nrest", Some((250, vec!["a".to_owned(), "STARTTLS".to_owned()], 21)));
        check("220\r\n", Some((220, vec![String::new()], 5)));
        check("550 a\x1b[2Jb\n", Some((550, vec!["a[2Jb".to_owned()], 11)));
        for other in ["HTTP/1.1 400\r\n", "\r\n", "äöü\r\n"] {
            assert!(parse(other.as_bytes()).is_err(), "{other}");
        }
    }

    #[test]
    fn a_dot_at_the_beginning_of_a_line_does_not_end_the_mail() {
        assert_eq!(stuffed("a\r\n.\r\n..b\r\nc.\r\n"), "a\r\n..\r\n...b\r\nc.\r\n");
    }
}
