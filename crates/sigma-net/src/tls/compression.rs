//! Compression of certificates in handshakes of TLS 1.3 (RFC 8879), for clients that offer it.
//!
//! A chain takes about a third fewer bytes, which matters most over QUIC: until a client's address is proved, the
//! server may send only three times the bytes that it has received. rustls keeps compressed chains, so that each is
//! compressed once.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use rustls::compress::{CertCompressor, CompressionFailed, CompressionLevel};
use rustls::{CertificateCompressionAlgorithm, ServerConfig};

/// The window of brotli as a power of two: larger than any chain, and small enough to cost little memory.
const BROTLI_WINDOW: u32 = 16;

/// Makes `config` compress certificates, by brotli rather than by zlib.
pub(super) fn apply(config: &mut ServerConfig) {
    config.cert_compressors = vec![&Brotli, &Zlib];
}

/// Chrome and Firefox offer it.
#[derive(Debug)]
struct Brotli;

impl CertCompressor for Brotli {
    fn compress(&self, input: Vec<u8>, level: CompressionLevel) -> Result<Vec<u8>, CompressionFailed> {
        let quality = match level {
            CompressionLevel::Interactive => 3,
            CompressionLevel::Amortized => 9,
        };
        let mut output = Vec::with_capacity(input.len());
        let mut writer = brotli::CompressorWriter::new(&mut output, 4096, quality, BROTLI_WINDOW);
        writer.write_all(&input).map_err(|_| CompressionFailed)?;
        writer.flush().map_err(|_| CompressionFailed)?;
        drop(writer);
        Ok(output)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        CertificateCompressionAlgorithm::Brotli
    }
}

/// Firefox and Safari offer it.
#[derive(Debug)]
struct Zlib;

impl CertCompressor for Zlib {
    fn compress(&self, input: Vec<u8>, level: CompressionLevel) -> Result<Vec<u8>, CompressionFailed> {
        let level = match level {
            CompressionLevel::Interactive => Compression::fast(),
            CompressionLevel::Amortized => Compression::best(),
        };
        let mut encoder = ZlibEncoder::new(Vec::with_capacity(input.len()), level);
        encoder.write_all(&input).map_err(|_| CompressionFailed)?;
        encoder.finish().map_err(|_| CompressionFailed)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        CertificateCompressionAlgorithm::Zlib
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustls::client::{ClientConfig, ClientConnection};
    use rustls::compress::{CertDecompressor, DecompressionFailed};
    use rustls::pki_types::ServerName;
    use rustls::{RootCertStore, ServerConnection};

    use super::*;
    use crate::tls::Identity;

    /// Counts the bytes of chains that it has decompressed: before and after.
    #[derive(Debug)]
    struct Counted {
        algorithm: CertificateCompressionAlgorithm,
        bytes: [AtomicUsize; 2],
    }

    impl Counted {
        const fn new(algorithm: CertificateCompressionAlgorithm) -> Counted {
            Counted { algorithm, bytes: [AtomicUsize::new(0), AtomicUsize::new(0)] }
        }

        fn take(&self) -> [usize; 2] {
            [self.bytes[0].swap(0, Ordering::SeqCst), self.bytes[1].swap(0, Ordering::SeqCst)]
        }
    }

    impl CertDecompressor for Counted {
        fn decompress(&self, input: &[u8], output: &mut [u8]) -> Result<(), DecompressionFailed> {
            self.bytes[0].fetch_add(input.len(), Ordering::SeqCst);
            self.bytes[1].fetch_add(output.len(), Ordering::SeqCst);
            let read = match self.algorithm {
                CertificateCompressionAlgorithm::Brotli => {
                    brotli::Decompressor::new(input, 4096).read_exact(output)
                }
                _ => flate2::read::ZlibDecoder::new(input).read_exact(output),
            };
            read.map_err(|_| DecompressionFailed)
        }

        fn algorithm(&self) -> CertificateCompressionAlgorithm {
            self.algorithm
        }
    }

    static BROTLI: Counted = Counted::new(CertificateCompressionAlgorithm::Brotli);
    static ZLIB: Counted = Counted::new(CertificateCompressionAlgorithm::Zlib);

    fn shake(mut client: ClientConnection, mut server: ServerConnection) {
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            let mut unread = &wire[..];
            while !unread.is_empty() {
                server.read_tls(&mut unread).unwrap();
                server.process_new_packets().unwrap();
            }
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            let mut unread = &wire[..];
            while !unread.is_empty() {
                client.read_tls(&mut unread).unwrap();
                client.process_new_packets().unwrap();
            }
        }
    }

    #[test]
    fn clients_choose_the_compression() {
        let made =
            rcgen::generate_simple_self_signed((0..40).map(|n| format!("{n}.a.test")).collect::<Vec<_>>())
                .unwrap();
        let pair =
            crate::tls::pem::Pair::parse(&made.cert.pem(), &made.signing_key.serialize_pem(), None).unwrap();
        let identity = crate::tls::ServerIdentity::new(Identity {
            pairs: vec![pair],
            versions: crate::tls::Versions::ALL,
            offer: crate::tls::Offer::default(),
            client_auth: None,
            resumption: crate::tls::Resumption::Off,
        })
        .unwrap();
        let server = identity.configuration(&[]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let check = |offered: Vec<&'static dyn CertDecompressor>, expected: [bool; 2]| {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let client = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots.clone());
            let mut client = client.with_no_client_auth();
            client.cert_decompressors = offered;
            let name = ServerName::try_from("1.a.test").unwrap();
            let client = ClientConnection::new(Arc::new(client), name).unwrap();
            shake(client, ServerConnection::new(Arc::clone(&server)).unwrap());
            for (counted, expected) in [&BROTLI, &ZLIB].into_iter().zip(expected) {
                let [before, after] = counted.take();
                assert_eq!(before > 0, expected, "{counted:?}");
                assert!(!expected || 3 * before < 2 * after, "{before} of {after} bytes");
            }
        };
        check(vec![], [false, false]);
        check(vec![&ZLIB], [false, true]);
        check(vec![&ZLIB, &BROTLI], [true, false]);
        check(vec![&BROTLI], [true, false]);
    }
}
