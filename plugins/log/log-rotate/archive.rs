//! An archive of one file: `tar` (POSIX.1-1988, ustar), compressed by gzip.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

/// The unit of an archive.
const BLOCK: usize = 512;

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// Archives are as private as logs.
const FILE_MODE: u32 = 0o640;

/// Writes the archive of `from` to a new file `to`.
///
/// # Errors
/// Returns an error if a file cannot be read or written, or it takes longer than `timeout`.
pub(super) fn write(from: &Path, to: &Path, timeout: Duration) -> io::Result<()> {
    let began = Instant::now();
    let mut source = File::open(from)?;
    let about = source.metadata()?;
    let name = from.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    // One that a stopped process left. A new file is never a link.
    match std::fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(to)?;
    let mut out = GzEncoder::new(file, Compression::default());
    out.write_all(&header(name.as_encoded_bytes(), about.len(), about.mtime())?)?;
    let (mut piece, mut length) = (vec![0; PIECE], 0);
    loop {
        let read = source.read(&mut piece)?;
        if read == 0 {
            break;
        }
        length += read as u64;
        out.write_all(&piece[..read])?;
        if began.elapsed() > timeout {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it takes longer than {timeout:?}")));
        }
    }
    if length != about.len() {
        return Err(io::Error::other("it has changed in the meantime"));
    }
    let rest = (BLOCK - (length % BLOCK as u64) as usize) % BLOCK;
    // Two empty blocks are the end.
    out.write_all(&vec![0; rest + 2 * BLOCK])?;
    out.finish()?.sync_all()
}

/// Returns the header of a file.
fn header(name: &[u8], length: u64, modified_s: i64) -> io::Result<[u8; BLOCK]> {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    if name.len() > 100 {
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, "its name is too long for an archive"));
    }
    put(0, name);
    put(100, format!("{FILE_MODE:07o}\0").as_bytes());
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    // Eleven octal digits are 8 GiB; GNU's form of larger numbers is twelve bytes, of which the first is marked.
    match length < 1 << 33 {
        true => put(124, format!("{length:011o}\0").as_bytes()),
        false => put(124, &[&[0x80, 0, 0, 0][..], &length.to_be_bytes()].concat()),
    }
    put(136, format!("{:011o}\0", modified_s.max(0)).as_bytes());
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}
