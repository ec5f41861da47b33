//! TLS around one end of a test: its bytes in cleartext are encrypted on the way to the gateway, by code other than
//! the gateway's.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::socket::Socket;
use crate::streams::{runtime, tokio_socket};

/// The name that certificates of tests are for.
const NAME: &str = "sealed.test";

/// A certificate for both sides, as files and as settings.
pub(crate) struct TestTls {
    dir: TempDir,
    connector: TlsConnector,
    acceptors: [TlsAcceptor; 2],
}

/// The protocol above TLS.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Above {
    H1,
    H2,
}

impl Above {
    fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Above::H1 => vec![b"http/1.1".to_vec()],
            Above::H2 => vec![b"h2".to_vec()],
        }
    }
}

impl TestTls {
    /// Returns the one of this process.
    pub(crate) fn get() -> &'static TestTls {
        static TEST_TLS: OnceLock<TestTls> = OnceLock::new();
        TEST_TLS.get_or_init(|| TestTls::make().expect("a certificate for the tests"))
    }

    fn make() -> Result<TestTls> {
        let key = KeyPair::generate()?;
        let cert = CertificateParams::new(vec![NAME.to_owned()])?.self_signed(&key)?;
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("cert.pem"), cert.pem())?;
        std::fs::write(dir.path().join("key.pem"), key.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone())?;
        let provider = Arc::new(default_provider());
        let connector = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let acceptor = |above: Above| -> Result<TlsAcceptor> {
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_single_cert(vec![cert.der().clone()], key)?;
            config.alpn_protocols = above.alpn();
            Ok(TlsAcceptor::from(Arc::new(config)))
        };
        let acceptors = [acceptor(Above::H1)?, acceptor(Above::H2)?];
        Ok(TestTls { connector: TlsConnector::from(Arc::new(connector)), dir, acceptors })
    }

    /// Returns the files of the certificate and of its key.
    pub(crate) fn files(&self) -> [PathBuf; 2] {
        ["cert.pem", "key.pem"].map(|name| self.dir.path().join(name))
    }

    /// Returns the cleartext end of a connection that a client has just opened.
    pub(crate) fn client(&self, socket: Socket, above: Above) -> Result<Socket> {
        let (near, far) = pair()?;
        let (mut far, socket) = (tokio_socket(Socket::Tcp(far))?, tokio_socket(socket)?);
        let mut config = ClientConfig::clone(self.connector.config());
        config.alpn_protocols = above.alpn();
        let connector = TlsConnector::from(Arc::new(config));
        runtime().spawn(async move {
            let name = ServerName::try_from(NAME).expect("a DNS name");
            if let Ok(mut sealed) = connector.connect(name, socket).await {
                // The test sees the end in the bytes that it reads.
                let _ = tokio::io::copy_bidirectional(&mut sealed, &mut far).await;
            }
        });
        Ok(Socket::Tcp(near))
    }

    /// Returns the cleartext end of a connection that an origin has just accepted.
    pub(crate) fn origin(&self, socket: Socket, above: Above) -> Result<Socket> {
        let (near, far) = pair()?;
        let (mut far, socket) = (tokio_socket(Socket::Tcp(far))?, tokio_socket(socket)?);
        let acceptor = self.acceptors[above as usize].clone();
        runtime().spawn(async move {
            if let Ok(mut sealed) = acceptor.accept(socket).await {
                let _ = tokio::io::copy_bidirectional(&mut sealed, &mut far).await;
            }
        });
        Ok(Socket::Tcp(near))
    }
}

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept().context("loopback pair")?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}
