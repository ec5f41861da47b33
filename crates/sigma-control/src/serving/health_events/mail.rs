//! Notifications by mail.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use sigma_config::health_events::{Mail as Settings, MailSecurity};
use sigma_config::tls::Tls;
use sigma_net::Stream;
use sigma_net::tls::{Authorities, ClientSettings, ClientTls, Trust};
use sigma_upstream::health::HealthEvent;
use tokio::net::TcpStream;

use super::Service;
use super::smtp::{Connection, Mail};

/// Sends mails by one server.
pub(super) struct Mailer {
    settings: Settings,
    trusted: Option<PathBuf>,
}

impl Mailer {
    pub(super) fn new(settings: &Settings, tls: &Tls) -> Mailer {
        Mailer { settings: settings.clone(), trusted: tls.trusted_certificates.clone() }
    }

    /// Connects to the server, over TLS unless the settings say otherwise.
    async fn connect(&self) -> Result<Connection, String> {
        let (host, port) = self.settings.address()?;
        let failed = |error: std::io::Error| format!("cannot connect to {host}:{port}: {error}");
        let stream = Stream::Tcp(TcpStream::connect((host, port)).await.map_err(failed)?);
        match self.settings.security {
            MailSecurity::None => {
                let mut connection = Connection::greet(stream).await?;
                connection.introduce().await?;
                Ok(connection)
            }
            MailSecurity::Tls => {
                let stream = self.tls()?.shake(stream, host).await;
                let mut connection =
                    Connection::greet(stream.map_err(|error| format!("TLS: {error}"))?).await?;
                connection.introduce().await?;
                Ok(connection)
            }
            MailSecurity::Starttls => {
                let mut connection = Connection::greet(stream).await?;
                connection.introduce().await?;
                let mut connection = connection.start_tls(&self.tls()?, host).await?;
                // The server may have other capabilities over TLS.
                connection.introduce().await?;
                Ok(connection)
            }
        }
    }

    /// Returns the trust in servers. Read for each mail: mails are rare.
    fn tls(&self) -> Result<ClientTls, String> {
        let authorities = match &self.trusted {
            None => Authorities::system(),
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                Authorities::from_pem(&text)
            }
        };
        let trust = Trust::Authorities(authorities.map_err(|error| error.to_string())?);
        let settings = ClientSettings { trust, ..ClientSettings::default() };
        ClientTls::new(settings).map_err(|error| error.to_string())
    }
}

impl Service for Mailer {
    const PLACE: &'static str = "health_events.mail";

    fn interval(&self) -> Duration {
        Duration::from_secs(self.settings.interval_s.into())
    }

    async fn send(&self, events: &[HealthEvent]) -> Result<(), String> {
        let mut connection = self.connect().await?;
        if let Some(user) = &self.settings.username {
            let password = self.settings.password.as_ref().map(|password| password.reveal());
            connection.authenticate(user, password.unwrap_or_default()).await?;
        }
        let Settings { from, to, .. } = &self.settings;
        let text = text(from, to, events, SystemTime::now());
        connection.send(&Mail { from, to, text: &text }).await
    }
}

/// Returns the fields and the body of a mail.
fn text(from: &str, to: &[String], events: &[HealthEvent], now: SystemTime) -> String {
    let out = events.iter().filter(|event| event.reason.is_some()).count();
    let date = httpdate::fmt_http_date(now).replace("GMT", "+0000");
    let sent = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let domain = from.rsplit_once('@').map_or("localhost", |(_, domain)| domain);
    let mut text = format!(
        "From: Sigma <{from}>\r\nTo: {}\r\nSubject: Sigma: {out} nodes out, {} nodes back\r\nDate: {date}\r\n\
         Message-ID: <{sent}.{}@{domain}>\r\nAuto-Submitted: auto-generated\r\nMIME-Version: 1.0\r\n\
         Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n",
        to.join(", "),
        events.len() - out,
        std::process::id(),
    );
    for event in events {
        let (state, reason) = match &event.reason {
            Some(reason) => ("out", format!(": {reason}")),
            None => ("back", String::new()),
        };
        let line = format!("{state} {} {} ({}){reason}", event.upstream, event.node, event.address);
        // Names of nodes come from registries, which must not add lines.
        let line: String = line.chars().filter(|c| !c.is_control()).take(900).collect();
        let _ = write!(text, "{line}\r\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::{TlsAcceptor, rustls};

    use super::*;

    #[test]
    fn a_mail_has_a_line_for_each_event() {
        let event = |node: &str, reason: Option<&str>| HealthEvent {
            upstream: "upstreams/1".into(),
            node: node.to_owned(),
            address: "10.0.0.1:80".to_owned(),
            reason: reason.map(str::to_owned),
        };
        let events = [event("a", Some("active check: timeout")), event("b\r\nBcc: x@y", None)];
        let to = ["ops@example.com".to_owned(), "b@example.com".to_owned()];
        let text = text("sigma@example.com", &to, &events, SystemTime::UNIX_EPOCH);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(
            "\r\nTo: ops@example.com, b@example.com\r\nSubject: Sigma: 1 nodes out, 1 nodes back\r\n"
        ));
        assert!(head.contains("\r\nDate: Thu, 01 Jan 1970 00:00:00 +0000\r\n"), "{head}");
        assert_eq!(
            body,
            "out upstreams/1 a (10.0.0.1:80): active check: timeout\r\nback upstreams/1 bBcc: x@y (10.0.0.1:80)\r\n"
        );
    }

    /// A played server: its responses, line by line, and the lines that it received.
    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        stream: &mut S,
        greets: bool,
        offers: &str,
        received: &mut Vec<String>,
    ) -> bool {
        if greets {
            stream.write_all(b"220-mail.test\r\n220 ready\r\n").await.unwrap();
        }
        let (mut line, mut is_data) = (Vec::new(), false);
        while let Ok(byte) = stream.read_u8().await {
            line.push(byte);
            if !line.ends_with(b"\r\n") {
                continue;
            }
            let text = String::from_utf8(std::mem::take(&mut line)).unwrap().trim_end().to_owned();
            received.push(text.clone());
            let response = match text.split([' ', ':']).next().unwrap_or_default() {
                "." if is_data => {
                    is_data = false;
                    "250 queued".to_owned()
                }
                _ if is_data => continue,
                "EHLO" => format!("250-mail.test\r\n{offers}250 8BITMIME"),
                "STARTTLS" => {
                    stream.write_all(b"220 go ahead\r\n").await.unwrap();
                    return true;
                }
                "AUTH" => "235 welcome".to_owned(),
                "DATA" => {
                    is_data = true;
                    "354 go on".to_owned()
                }
                "QUIT" => "221 bye".to_owned(),
                _ => "250 ok".to_owned(),
            };
            stream.write_all(format!("{response}\r\n").as_bytes()).await.unwrap();
        }
        false
    }

    /// Sends one event through a played server; returns the outcome and the lines that the server received.
    async fn sent(security: MailSecurity, offers: &'static str) -> (Result<(), String>, Vec<String>) {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let trusted = dir.path().join("ca.pem");
        std::fs::write(&trusted, made.cert.pem()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![made.cert.der().clone()],
                rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap().to_string();
        let serving = tokio::spawn(async move {
            let mut received = Vec::new();
            let (mut stream, _) = listener.accept().await.unwrap();
            if security == MailSecurity::Tls {
                let mut stream = acceptor.accept(stream).await.unwrap();
                serve(&mut stream, true, offers, &mut received).await;
            } else if serve(&mut stream, true, offers, &mut received).await {
                let mut stream = acceptor.accept(stream).await.unwrap();
                serve(&mut stream, false, offers, &mut received).await;
            }
            received
        });
        let user = (security != MailSecurity::None).then_some("u");
        let mail = serde_json::json!({
            "server": server, "security": security, "username": user, "password": user.map(|_| "p"),
            "from": "sigma@a.test", "to": ["b@a.test", "c@a.test"],
        });
        let tls = Tls { trusted_certificates: Some(trusted), ..Tls::default() };
        let mailer = Mailer::new(&serde_json::from_value(mail).unwrap(), &tls);
        let event = HealthEvent {
            upstream: "upstreams/1".into(),
            node: ".a".to_owned(),
            address: "10.0.0.1:80".to_owned(),
            reason: None,
        };
        let outcome = mailer.send(&[event]).await;
        (outcome, serving.await.unwrap())
    }

    #[tokio::test]
    async fn mails_are_sent_with_each_kind_of_security() {
        for (security, offers) in [
            (MailSecurity::None, ""),
            (MailSecurity::Starttls, "250-STARTTLS\r\n"),
            (MailSecurity::Tls, "250-AUTH PLAIN\r\n"),
        ] {
            let (outcome, received) = sent(security, offers).await;
            assert_eq!(outcome, Ok(()), "{security:?}");
            let at = |text: &str| received.iter().position(|line| line == text);
            assert!(at("MAIL FROM:<sigma@a.test>") < at("RCPT TO:<b@a.test>"), "{received:?}");
            assert!(at("RCPT TO:<c@a.test>") < at("DATA") && at("DATA") < at("."), "{received:?}");
            assert!(at("back upstreams/1 .a (10.0.0.1:80)").is_some(), "{received:?}");
            let authenticates = at("AUTH PLAIN AHUAcA==").is_some();
            assert_eq!(authenticates, security != MailSecurity::None, "{received:?}");
            assert_eq!(
                received.iter().filter(|line| line.starts_with("EHLO [127.0.0.1]")).count(),
                match security {
                    MailSecurity::Starttls => 2,
                    _ => 1,
                }
            );
        }
    }

    /// A man in the middle could remove the offer.
    #[tokio::test]
    async fn without_starttls_nothing_is_sent() {
        let (outcome, received) = sent(MailSecurity::Starttls, "").await;
        assert!(outcome.unwrap_err().contains("STARTTLS"));
        assert_eq!(received.len(), 1, "{received:?}");
    }
}
