//! The text of a page, made a little at a time, in plain or compressed.

use std::fmt::Display;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::gzip::{Gzip, SHORTEST, WINDOW};

/// Bytes of a piece that leaves, about.
const PIECE_BYTES: usize = 64 * 1024;

/// How a page looks to who requests it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) form: Form,
    pub(super) coding: Coding,
}

/// The form of a page. Of two that are wanted as much, the later one is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// The text format of Prometheus.
    Text,
    /// OpenMetrics 1.0, with exemplars.
    OpenMetrics,
    /// Messages of Protocol Buffers, with native histograms.
    Protobuf,
}

/// How a page is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Identity,
    Gzip,
}

/// The text that was written and has not left.
pub(super) struct Text {
    plain: Vec<u8>,
    /// Where `plain` begins in the whole text.
    start: u64,
    packing: Packing,
}

/// How text becomes what leaves.
enum Packing {
    None,
    /// By known repetitions.
    Told(Gzip),
    /// By a search for them: messages are short, and where they repeat each other is nothing that their encoder knows.
    Found(GzEncoder<Vec<u8>>),
}

impl Text {
    pub(super) fn new(look: Look) -> Text {
        let packing = match (look.coding, look.form) {
            (Coding::Identity, _) => Packing::None,
            (Coding::Gzip, Form::Text | Form::OpenMetrics) => Packing::Told(Gzip::new()),
            (Coding::Gzip, Form::Protobuf) => Packing::Found(GzEncoder::new(Vec::new(), Compression::fast())),
        };
        Text { plain: Vec::with_capacity(PIECE_BYTES), start: 0, packing }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.plain.extend_from_slice(bytes);
        if let Packing::Told(gzip) = &mut self.packing {
            gzip.literals(bytes);
        }
    }

    /// A value that is shown.
    pub(super) fn show(&mut self, value: impl Display) {
        let from = self.plain.len();
        // Writing to a Vec cannot fail.
        let _ = write!(self.plain, "{value}");
        if let Packing::Told(gzip) = &mut self.packing {
            gzip.literals(&self.plain[from..]);
        }
    }

    pub(super) fn number(&mut self, number: u64) {
        self.write(itoa::Buffer::new().format(number).as_bytes());
    }

    /// A part that was written before, or one like it.
    pub(super) fn repeat(&mut self, part: &mut Repeated) {
        let here = self.start + self.plain.len() as u64;
        let text = part.text.as_bytes();
        self.plain.extend_from_slice(text);
        if let Packing::Told(gzip) = &mut self.packing {
            let known = part.known;
            known.write(gzip, here, text);
        }
        part.is_written = true;
        part.known = WrittenPart { at: Some(here), before: text.len(), prefix: text.len(), suffix: 0 };
    }

    /// Bytes that were written since [`Text::settle`].
    pub(super) fn unsettled(&self) -> usize {
        self.plain.len()
    }

    /// Adds the output to the checksum. A piece of what leaves, once there is enough for one.
    pub(super) fn settle(&mut self) -> Option<Vec<u8>> {
        let out = match &mut self.packing {
            Packing::Told(gzip) => {
                gzip.sum_up(&self.plain);
                self.start += self.plain.len() as u64;
                self.plain.clear();
                gzip.made()
            }
            Packing::Found(gzip) => {
                // Writing to a Vec cannot fail.
                let _ = gzip.write_all(&self.plain);
                self.plain.clear();
                gzip.get_mut()
            }
            Packing::None => &mut self.plain,
        };
        (out.len() >= PIECE_BYTES).then(|| std::mem::replace(out, Vec::with_capacity(PIECE_BYTES + 8192)))
    }

    /// The last piece, which may be empty. Everything was settled before.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        match &mut self.packing {
            Packing::Told(gzip) => {
                gzip.finish();
                std::mem::take(gzip.made())
            }
            Packing::Found(gzip) => {
                let _ = gzip.try_finish();
                std::mem::take(gzip.get_mut())
            }
            Packing::None => std::mem::take(&mut self.plain),
        }
    }
}

/// A part of lines that is written again and again, as it was or with little that differs.
#[derive(Default)]
pub(super) struct Repeated {
    text: String,
    known: WrittenPart,
    /// Whether it was written since it was set.
    is_written: bool,
    /// The text before this one.
    before: String,
}

/// Where a part, or one like it, was written last.
#[derive(Debug, Clone, Copy, Default)]
struct WrittenPart {
    at: Option<u64>,
    /// Bytes that were written before it.
    before: usize,
    /// How many of them this part begins with.
    prefix: usize,
    /// And how many it ends with.
    suffix: usize,
}

impl WrittenPart {
    fn write(self, gzip: &mut Gzip, here: u64, text: &[u8]) {
        let (middle, tail) = (self.prefix, text.len() - self.suffix);
        let mut copy = |from: usize, to: usize, at: Option<u64>| match at.map(|at| here + from as u64 - at) {
            Some(distance) if to - from >= SHORTEST && distance <= WINDOW => gzip.repeat(distance, to - from),
            _ => gzip.literals(&text[from..to]),
        };
        copy(0, middle, self.at);
        copy(middle, tail, None);
        copy(tail, text.len(), self.at.map(|at| at + (self.before - self.suffix) as u64));
    }
}

impl Repeated {
    pub(super) fn of(text: String) -> Repeated {
        Repeated { text, ..Repeated::default() }
    }

    /// Replaces the former content of the part.
    pub(super) fn set(&mut self, parts: &[&str]) {
        std::mem::swap(&mut self.text, &mut self.before);
        self.text.clear();
        parts.iter().for_each(|part| self.text.push_str(part));
        if !std::mem::take(&mut self.is_written) {
            self.known = WrittenPart::default();
            return;
        }
        let (new, old) = (self.text.as_bytes(), self.before.as_bytes());
        let prefix = shared(new.iter().zip(old));
        let suffix = shared(new[prefix..].iter().rev().zip(old[prefix..].iter().rev()));
        self.known = WrittenPart { prefix, suffix, ..self.known };
    }
}

fn shared<'b>(pairs: impl Iterator<Item = (&'b u8, &'b u8)>) -> usize {
    pairs.take_while(|(one, other)| one == other).count()
}
