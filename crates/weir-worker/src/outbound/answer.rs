//! Reading an answer: its status, and as much of its body as is kept. Bytes go in as they come; nothing here waits.
//!
//! ```text
//! Head ──▶ Sized ───────────────────────────────────▶ Over
//!      ├─▶ ChunkSize ⇄ Chunk ──▶ ChunkSize = 0 ──▶ Trailers ──▶ Over
//!      └─▶ UntilClose ──────────────────────────────▶ Over
//! ```

mod head;

use std::time::Duration;

use httparse::Status;
use weir_core::{Clock, outcome::Met};

use super::{MAX_ANSWER_BODY, fault::Broken};
use head::{Framing, Head, Parsed};

/// The most that is read of an answer's head, and of its trailers.
const MAX_HEAD: usize = 32 * 1024;
/// The longest line before a chunk: a size, and extensions that nobody uses.
const MAX_CHUNK_LINE: usize = 1024;
/// Trailers that are read past.
const MAX_TRAILERS: usize = 64;

/// What has arrived so far. Outlives the read, so that a timeout still finds it.
pub(super) struct Answer<'c> {
    clock: &'c dyn Clock,
    part: Part,
    /// The beginning of what cannot be read without its end: of a head, of a chunk's line, of trailers.
    held: Vec<u8>,
    head: Option<Head>,
    body: Vec<u8>,
    /// All of it has been read, and nothing came after it.
    whole: bool,
}

/// What the next byte is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    /// So many bytes of the body are left.
    Sized(u64),
    ChunkSize,
    /// So many bytes of the chunk are left.
    Chunk(u64),
    ChunkEnd,
    Trailers,
    UntilClose,
    /// The answer has ended, or enough of it is read.
    Over,
}

impl<'c> Answer<'c> {
    /// The clock is for what an answer says about time.
    pub(super) fn new(clock: &'c dyn Clock) -> Self {
        Self { clock, part: Part::Head, held: Vec::new(), head: None, body: Vec::new(), whole: false }
    }

    /// Reads on, in what has come.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        if self.held.is_empty() {
            let rest = self.read(bytes)?;
            self.held.extend_from_slice(rest);
            return Ok(());
        }
        self.held.extend_from_slice(bytes);
        // All that is held ends with a line; whoever drips is not to be read anew with each byte.
        if bytes.contains(&b'\n') || self.held.len() > MAX_HEAD {
            let held = std::mem::take(&mut self.held);
            let rest = self.read(&held)?;
            self.held.extend_from_slice(rest);
        }
        Ok(())
    }

    /// The server says no more.
    pub(super) fn close(&mut self) -> Result<(), Broken> {
        if self.part == Part::UntilClose {
            self.part = Part::Over;
            return Ok(());
        }
        // What was held for its line may be no HTTP at all, which says more.
        let held = std::mem::take(&mut self.held);
        self.read(&held)?;
        Err(Broken::Closed)
    }

    /// Whether no more is to be read: the answer has ended, or its body has reached [`MAX_ANSWER_BODY`].
    pub(super) fn is_over(&self) -> bool {
        self.part == Part::Over
    }

    /// Whether another request may follow on the connection.
    pub(super) fn leaves_nothing(&self) -> bool {
        self.whole && self.head.as_ref().is_some_and(|head| head.keeps_alive)
    }

    /// The status is 0 before the head has arrived.
    pub(super) fn met(&self) -> Met {
        let Some(&Head { status, retry_after, used_up_for, .. }) = self.head.as_ref() else {
            return Met::Answer { status: 0, retry_after: None, used_up_for: None };
        };
        Met::Answer { status, retry_after, used_up_for }
    }

    /// What to say when time is up.
    pub(super) fn lateness(&self, limit: Duration) -> String {
        let what = if self.head.is_some() { "the answer's body did not end" } else { "no answer" };
        format!("{what} within {} ms", limit.as_millis())
    }

    pub(super) fn into_text(self) -> Option<String> {
        (!self.body.is_empty()).then(|| text(self.body))
    }

    /// Reads as far as can be; what is left has to be held until more comes.
    fn read<'b>(&mut self, mut bytes: &'b [u8]) -> Result<&'b [u8], Broken> {
        while !bytes.is_empty() {
            match self.step(bytes)? {
                Some(rest) => bytes = rest,
                None => break,
            }
        }
        if self.body.len() == MAX_ANSWER_BODY {
            self.part = Part::Over;
        }
        Ok(if self.is_over() { &[] } else { bytes })
    }

    /// Reads one part, or as much of it as there is; `None` when that needs more, or when no more is needed.
    fn step<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<&'b [u8]>, Broken> {
        match self.part {
            Part::Head => self.read_head(bytes),
            Part::Sized(left) => Ok(self.keep(bytes, left).map(|(rest, left)| {
                self.expect(left);
                rest
            })),
            Part::ChunkSize => self.read_chunk_size(bytes),
            Part::Chunk(left) => Ok(self.keep(bytes, left).map(|(rest, left)| {
                self.part = if left == 0 { Part::ChunkEnd } else { Part::Chunk(left) };
                rest
            })),
            Part::ChunkEnd => match bytes {
                [b'\r', b'\n', rest @ ..] => {
                    self.part = Part::ChunkSize;
                    Ok(Some(rest))
                }
                [b'\r'] => Ok(None),
                _ => Err(Broken::NotHttp),
            },
            Part::Trailers => self.read_trailers(bytes),
            Part::UntilClose => Ok(self.keep(bytes, u64::MAX).map(|(rest, _)| rest)),
            Part::Over => {
                self.whole = false;
                Ok(None)
            }
        }
    }

    fn read_head<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<&'b [u8]>, Broken> {
        match head::parse(bytes, self.clock)? {
            Parsed::Partial if bytes.len() > MAX_HEAD => Err(Broken::TooLarge),
            Parsed::Partial => Ok(None),
            Parsed::Informational(length) => Ok(Some(&bytes[length..])),
            Parsed::Final(length, ..) if length > MAX_HEAD => Err(Broken::TooLarge),
            Parsed::Final(length, head, framing) => {
                self.head = Some(head);
                match framing {
                    Framing::Sized(length) => self.expect(length),
                    Framing::Chunked => self.part = Part::ChunkSize,
                    Framing::UntilClose => self.part = Part::UntilClose,
                }
                Ok(Some(&bytes[length..]))
            }
        }
    }

    fn read_chunk_size<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<&'b [u8]>, Broken> {
        // To httparse no digit at all is a 0, and a 0 ends the body.
        if !bytes.first().is_some_and(u8::is_ascii_hexdigit) {
            return Err(Broken::NotHttp);
        }
        match httparse::parse_chunk_size(bytes) {
            Ok(Status::Complete((length, size))) if length <= MAX_CHUNK_LINE => {
                self.part = if size == 0 { Part::Trailers } else { Part::Chunk(size) };
                Ok(Some(&bytes[length..]))
            }
            Ok(Status::Partial) if bytes.len() <= MAX_CHUNK_LINE => Ok(None),
            _ => Err(Broken::NotHttp),
        }
    }

    /// Reads past them.
    fn read_trailers<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<&'b [u8]>, Broken> {
        match httparse::parse_headers(bytes, &mut [httparse::EMPTY_HEADER; MAX_TRAILERS]) {
            // httparse takes a bare LF for the end of a line; where an answer ends must not be a matter of opinion.
            Ok(Status::Complete((length, _))) if has_bare_lf(&bytes[..length]) => Err(Broken::NotHttp),
            Ok(Status::Complete((length, _))) if length <= MAX_HEAD => {
                self.expect(0);
                Ok(Some(&bytes[length..]))
            }
            Ok(Status::Partial) if bytes.len() <= MAX_HEAD => Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => Err(Broken::TooLarge),
            Err(_) => Err(Broken::NotHttp),
        }
    }

    /// So many bytes of the body are to come, and then the answer has ended.
    fn expect(&mut self, left: u64) {
        self.whole = left == 0;
        self.part = if self.whole { Part::Over } else { Part::Sized(left) };
    }

    /// Keeps what there is of the next `left` bytes; the rest of the bytes, and how many are left then. `None` when more came than
    /// is kept: the answer is over.
    fn keep<'b>(&mut self, bytes: &'b [u8], left: u64) -> Option<(&'b [u8], u64)> {
        let length = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let (data, rest) = bytes.split_at(length);
        let room = MAX_ANSWER_BODY - self.body.len();
        self.body.extend_from_slice(&data[..length.min(room)]);
        (length <= room).then_some((rest, left - length as u64))
    }
}

fn has_bare_lf(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().any(|(at, &byte)| byte == b'\n' && !bytes[..at].ends_with(b"\r"))
}

/// Bytes as text of at most as many bytes. NUL goes too: PostgreSQL stores none in text.
fn text(body: Vec<u8>) -> String {
    let mut text = match String::from_utf8(body) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    };
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
    }
    // A replacement character is longer than what it replaces.
    text.truncate(text.floor_char_boundary(MAX_ANSWER_BODY));
    text
}

#[cfg(test)]
mod tests;
