//! W3C Trace Context: the `traceparent` header as a value. A header that breaks the specification is ignored and causes
//! no error: the producer's event is still accepted.
//!
//! ```text
//! 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//! version      trace id                 parent id      flags
//! ```

use std::fmt;

/// The name of the header, in requests to Weir and in requests to destinations.
pub const HEADER: &str = "traceparent";

const SAMPLED: u8 = 1;
/// The flags that version 00 defines: sampled, and random trace id (level 2). Only these are passed on.
const KNOWN_FLAGS: u8 = 3;
/// The length of a header of version 00, and of the part of a later version that is parsed.
const LEN: usize = 55;

/// A span in a trace, the parent of other spans. Neither of its ids is all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

impl TraceParent {
    /// The length of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 16 + 8 + 1;

    /// `None` when an id is all zero.
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], sampled: bool) -> Option<Self> {
        Self::with_flags(trace_id, span_id, u8::from(sampled))
    }

    /// Parses the value of a header; `None` when it is not valid. In a later version only the first four fields are
    /// read.
    pub fn parse(header: &[u8]) -> Option<Self> {
        let (known, extension) = header.split_at_checked(LEN)?;
        let mut version = [0];
        let (mut trace_id, mut span_id, mut flags) = ([0; 16], [0; 8], [0]);
        // `version-trace_id-span_id-flags`: hex of fixed lengths, with dashes between.
        let dashes = [2, 35, 52].iter().all(|&at| known[at] == b'-');
        let hex = read_hex(&known[..2], &mut version)
            && read_hex(&known[3..35], &mut trace_id)
            && read_hex(&known[36..52], &mut span_id)
            && read_hex(&known[53..], &mut flags);
        // Version 00 ends here, version ff is not allowed, and a later version may continue after another dash.
        let ends_well = match version[0] {
            0 => extension.is_empty(),
            0xff => false,
            _ => extension.first().is_none_or(|&next| next == b'-'),
        };
        if dashes && hex && ends_well { Self::with_flags(trace_id, span_id, flags[0]) } else { None }
    }

    /// Reads the 25 bytes that stores and queues keep: trace id, span id, flags. `None` when they are not a valid
    /// context.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (trace_id, remainder) = bytes.split_first_chunk()?;
        let (span_id, flags) = remainder.split_first_chunk()?;
        let &[flags] = flags else { return None };
        Self::with_flags(*trace_id, *span_id, flags)
    }

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.trace_id);
        bytes[16..24].copy_from_slice(&self.span_id);
        bytes[24] = self.flags;
        bytes
    }

    fn with_flags(trace_id: [u8; 16], span_id: [u8; 8], flags: u8) -> Option<Self> {
        let valid = trace_id != [0; 16] && span_id != [0; 8];
        valid.then_some(Self { trace_id, span_id, flags: flags & KNOWN_FLAGS })
    }

    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Whether the caller may have recorded its span.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED > 0
    }

    /// The context of a child span in the same trace. `None` when the child's id is all zero.
    #[must_use]
    pub fn child(self, span_id: [u8; 8], sampled: bool) -> Option<Self> {
        Self::with_flags(self.trace_id, span_id, self.flags & !SAMPLED | u8::from(sampled))
    }
}

/// The value of the header, in version 00.
impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace_id, span_id) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{:02x}", self.flags)
    }
}

/// Parses lower-case hex, the only form that the specification allows. Returns whether `text` is valid.
fn read_hex(text: &[u8], bytes: &mut [u8]) -> bool {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    text.len() == 2 * bytes.len()
        && text.chunks_exact(2).zip(bytes).all(|(pair, byte)| match (digit(pair[0]), digit(pair[1])) {
            (Some(high), Some(low)) => {
                *byte = high << 4 | low;
                true
            }
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: &str = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";

    #[test]
    fn a_parsed_header_is_written_back() {
        for (header, written, sampled) in [
            (format!("00-{IDS}-01"), format!("00-{IDS}-01"), true),
            (format!("00-{IDS}-00"), format!("00-{IDS}-00"), false),
            (format!("00-{IDS}-03"), format!("00-{IDS}-03"), true),
            // Flags that version 00 does not define are not passed on.
            (format!("00-{IDS}-ff"), format!("00-{IDS}-03"), true),
            (format!("00-{IDS}-08"), format!("00-{IDS}-00"), false),
            // A later version may have more fields, and is written back as version 00.
            (format!("cc-{IDS}-01"), format!("00-{IDS}-01"), true),
            (format!("cc-{IDS}-01-a-later-field"), format!("00-{IDS}-01"), true),
            (format!("01-{IDS}-00-"), format!("00-{IDS}-00"), false),
        ] {
            let read = TraceParent::parse(header.as_bytes()).unwrap_or_else(|| panic!("{header}"));
            assert_eq!((read.to_string(), read.is_sampled()), (written, sampled), "{header}");
            assert_eq!(TraceParent::from_bytes(&read.to_bytes()), Some(read));
        }
    }

    #[test]
    fn an_invalid_header_is_ignored() {
        let zeros = "0".repeat(32);
        for header in [
            String::new(),
            "00".to_owned(),
            format!("00-{IDS}-0"),
            format!("00-{IDS}-011"),
            format!("00-{IDS}-01-"),
            format!("00-{IDS}-01-more"),
            format!("ff-{IDS}-01"),
            format!("cc-{IDS}-01.more"),
            format!("0-{IDS}-01"),
            format!("0x-{IDS}-01"),
            format!("00-{IDS}-0x"),
            format!("00-{}-01", IDS.to_uppercase()),
            format!("00-{IDS}-0A"),
            format!("CC-{IDS}-01"),
            format!("00_{IDS}-01"),
            format!("00-{IDS}_01"),
            format!("00-{}-01", IDS.replace('-', "_")),
            format!("00-{zeros}-00f067aa0ba902b7-01"),
            format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", &zeros[..16]),
            format!(" 00-{IDS}-01"),
            "é".repeat(28),
        ] {
            assert_eq!(TraceParent::parse(header.as_bytes()), None, "{header}");
        }
        for bytes in [&[][..], &[1; 24], &[1; 26], &[0; 25]] {
            assert_eq!(TraceParent::from_bytes(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_child_is_in_the_same_trace() {
        let parent = TraceParent::parse(format!("00-{IDS}-03").as_bytes()).unwrap();
        assert_eq!(
            parent.child([1; 8], false).unwrap().to_string(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0101010101010101-02"
        );
        assert_eq!(parent.child([0; 8], true), None);
    }
}
