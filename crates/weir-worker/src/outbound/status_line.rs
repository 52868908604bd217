//! The status of an answer from its first bytes, for an answer whose head hyper does not read to the end.

/// The bytes of `HTTP/1.1 200 `, with the character after the status.
const LENGTH: usize = 13;

/// Finds the final status in the begin of an answer, however its bytes are split over reads.
#[derive(Debug, Default)]
pub(super) struct StatusReader {
    state: State,
    line: [u8; LENGTH],
    read: usize,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    /// In the first bytes of a head.
    #[default]
    StatusLine,
    /// In the head of an interim answer (1xx).
    Interim { at_line_start: bool },
    /// `None`: this is no HTTP/1.
    Found(Option<u16>),
}

impl StatusReader {
    pub(super) fn status(&self) -> Option<u16> {
        if let State::Found(status) = self.state { status } else { None }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.state = match self.state {
                State::Found(_) => return,
                State::StatusLine => self.in_status_line(byte),
                // An empty line ends the head.
                State::Interim { at_line_start: true } if byte == b'\n' => {
                    self.read = 0;
                    State::StatusLine
                }
                State::Interim { at_line_start } => {
                    State::Interim { at_line_start: byte == b'\n' || at_line_start && byte == b'\r' }
                }
            };
        }
    }

    fn in_status_line(&mut self, byte: u8) -> State {
        // Empty lines before a status line are allowed.
        if self.read == 0 && matches!(byte, b'\r' | b'\n') {
            return State::StatusLine;
        }
        self.line[self.read] = byte;
        self.read += 1;
        if self.read < LENGTH {
            return State::StatusLine;
        }
        match parse(&self.line) {
            // 101 is a final answer.
            Some(100 | 102..=199) => State::Interim { at_line_start: byte == b'\n' },
            status => State::Found(status),
        }
    }
}

fn parse(line: &[u8; LENGTH]) -> Option<u16> {
    let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1', b' ', digits @ .., b' ' | b'\r' | b'\n'] = line else {
        return None;
    };
    let is_status = digits.iter().all(u8::is_ascii_digit) && digits[0] != b'0';
    is_status.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_final_status_is_found_however_the_bytes_are_split() {
        for (answer, status) in [
            ("HTTP/1.1 200 OK\r\nx: y", Some(200)),
            ("\r\nHTTP/1.0 503\r\n", Some(503)),
            ("HTTP/1.1 101 Switching\r\n", Some(101)),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\nlink: x\n\nHTTP/1.1 429 Slow\r\n", Some(429)),
            ("HTTP/1.1 103 \r\nlink: \r \r\n\r\nHTTP/1.1 201 Made\r\n", Some(201)),
            ("HTTP/1.1 100 Continue\r\nx: HTTP/1.1 200 OK\r\n", None),
            ("HTTP/1.1 20", None),
            ("HTTP/1.1 2000 OK\r\n", None),
            ("HTTP/1.1 099 Low\r\n", None),
            ("HTTP/2.0 200 OK\r\n", None),
            ("SSH-2.0-OpenSSH_9.2\r\n", None),
        ] {
            for size in [1, 2, 7, 100] {
                let mut reader = StatusReader::default();
                answer.as_bytes().chunks(size).for_each(|part| reader.feed(part));
                assert_eq!(reader.status(), status, "{answer:?} {size}");
            }
        }
    }
}
