//! The bytes of a response, read while they are sent.

use std::collections::VecDeque;
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use sigma_http::Chunk;
use sigma_http::range::ByteRange;
use sigma_plugin::BodySource;
use tokio::task::JoinHandle;

/// Parts of a file, with text between them if they are several.
pub(super) struct FileBody {
    file: Arc<File>,
    parts: VecDeque<Part>,
    /// The piece that is being read.
    reading: Option<JoinHandle<io::Result<Chunk>>>,
}

enum Part {
    Text(Vec<u8>),
    Bytes { at: u64, left: u64 },
}

impl FileBody {
    /// One part of a file.
    pub(super) fn part(file: File, at: u64, length: u64) -> FileBody {
        FileBody::new(file, VecDeque::from([Part::Bytes { at, left: length }]))
    }

    /// Several parts as `multipart/byteranges` (RFC 9110 §14.6).
    pub(super) fn multipart(
        file: File,
        ranges: &[ByteRange],
        size: u64,
        media_type: &str,
        boundary: &str,
    ) -> FileBody {
        let mut parts = VecDeque::new();
        let mut before = "";
        for range in ranges {
            let content_range = range.content_range(size);
            let head = format!(
                "{before}--{boundary}\r\nContent-Type: {media_type}\r\nContent-Range: {content_range}\r\n\r\n"
            );
            parts.push_back(Part::Text(head.into_bytes()));
            parts.push_back(Part::Bytes { at: range.start, left: range.length() });
            before = "\r\n";
        }
        parts.push_back(Part::Text(format!("\r\n--{boundary}--\r\n").into_bytes()));
        FileBody::new(file, parts)
    }

    fn new(file: File, parts: VecDeque<Part>) -> FileBody {
        FileBody { file: Arc::new(file), parts, reading: None }
    }

    /// How many bytes there will be.
    pub(super) fn length(&self) -> u64 {
        let length = |part: &Part| match part {
            Part::Text(text) => text.len() as u64,
            Part::Bytes { left, .. } => *left,
        };
        self.parts.iter().map(length).sum()
    }

    /// Starts reading the next piece if the file has one.
    fn read_ahead(&mut self) {
        while let Some(Part::Bytes { left: 0, .. }) = self.parts.front() {
            self.parts.pop_front();
        }
        let Some(Part::Bytes { at, left }) = self.parts.front_mut() else { return };
        let mut chunk = Chunk::take();
        let wanted = usize::try_from(*left).unwrap_or(usize::MAX).min(chunk.spare().len());
        let (offset, file) = (*at, Arc::clone(&self.file));
        *at += wanted as u64;
        *left -= wanted as u64;
        self.reading = Some(tokio::task::spawn_blocking(move || {
            // A file that was cut short meanwhile is an error: the length is promised already.
            file.read_exact_at(&mut chunk.spare()[..wanted], offset)?;
            chunk.filled(wanted);
            Ok(chunk)
        }));
    }
}

impl BodySource for FileBody {
    fn poll_piece(&mut self, task: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        if self.reading.is_none() {
            self.read_ahead();
        }
        if let Some(reading) = &mut self.reading {
            let chunk = ready!(Pin::new(reading).poll(task));
            self.reading = None;
            let chunk = chunk.map_err(io::Error::other)??;
            self.read_ahead();
            return Poll::Ready(Ok(Some(chunk)));
        }
        match self.parts.pop_front() {
            Some(Part::Text(text)) => Poll::Ready(Ok(Some(Chunk::copy_of(&text)))),
            // `read_ahead` has taken all bytes in front.
            Some(Part::Bytes { .. }) | None => Poll::Ready(Ok(None)),
        }
    }
}
