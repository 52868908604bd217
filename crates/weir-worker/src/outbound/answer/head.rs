//! The head of an answer: what it says, and how far the body goes.

use std::{mem::MaybeUninit, time::Duration};

use httparse::{Error, Header, ParserConfig, Response, Status};
use weir_core::{Clock, outcome, quota};

use super::Broken;

const MAX_HEADERS: usize = 128;

/// What an answer says of itself.
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    pub(super) used_up_for: Option<Duration>,
    /// Another request may follow on the connection.
    pub(super) keeps_alive: bool,
}

/// How the body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// After so many bytes.
    Sized(u64),
    Chunked,
    /// With the connection.
    UntilClose,
}

/// What the bytes begin with, and its length.
pub(super) enum Parsed {
    /// A part of a head.
    Partial,
    /// A head that another follows, whole.
    Informational(usize),
    Final(usize, Head, Framing),
}

pub(super) fn parse(bytes: &[u8], clock: &dyn Clock) -> Result<Parsed, Broken> {
    let mut space = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut response = Response::new(&mut []);
    let length = match ParserConfig::default().parse_response_with_uninit_headers(&mut response, bytes, &mut space) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(Parsed::Partial),
        Err(Error::TooManyHeaders) => return Err(Broken::TooLarge),
        Err(_) => return Err(Broken::NotHttp),
    };
    let headers = Headers(response.headers);
    let status = match response.code.unwrap_or_default() {
        ..100 => return Err(Broken::NotHttp),
        100 | 102..200 => return Ok(Parsed::Informational(length)),
        status => status,
    };
    let is_1_1 = response.version == Some(1);
    let framing = headers.framing(status, is_1_1)?;
    let first = |name| headers.first(name);
    let wall = clock.wall();
    let head = Head {
        status,
        retry_after: first("retry-after").and_then(|value| outcome::retry_after(value, wall)),
        used_up_for: quota::used_up_for(first, wall),
        // After switching protocols no request of this one follows.
        keeps_alive: status != 101 && headers.keep_alive(is_1_1),
    };
    Ok(Parsed::Final(length, head, framing))
}

struct Headers<'h>(&'h [Header<'h>]);

impl<'h> Headers<'h> {
    fn all(&self, name: &str) -> impl Iterator<Item = &'h [u8]> {
        self.0.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }

    /// The first of the name, if it is text.
    fn first(&self, name: &str) -> Option<&'h str> {
        self.all(name).next().filter(|value| value.is_ascii()).and_then(|value| str::from_utf8(value).ok())
    }

    /// The members of a list that may be spread over several headers.
    fn members(&self, name: &str) -> impl Iterator<Item = &'h [u8]> {
        self.all(name).flat_map(|value| value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii)
    }

    /// Source: RFC 9112, section 6.3. Where that leaves a choice, the connection carries no other request.
    fn framing(&self, status: u16, is_1_1: bool) -> Result<Framing, Broken> {
        if matches!(status, 101 | 204 | 304) {
            return Ok(Framing::Sized(0));
        }
        if let Some(coding) = self.members("transfer-encoding").last() {
            return match is_1_1 {
                true if coding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
                true => Ok(Framing::UntilClose),
                // HTTP/1.0 has none: whoever says so has been spoken for by somebody in between.
                false => Err(Broken::NotHttp),
            };
        }
        let mut lengths = self.members("content-length").map(length_of);
        let Some(length) = lengths.next() else { return Ok(Framing::UntilClose) };
        match length {
            Some(length) if lengths.all(|other| other == Some(length)) => Ok(Framing::Sized(length)),
            _ => Err(Broken::NotHttp),
        }
    }

    fn keep_alive(&self, is_1_1: bool) -> bool {
        let says = |word: &[u8]| self.members("connection").any(|member| member.eq_ignore_ascii_case(word));
        // Two ways to tell the length are the mark of somebody who means two different answers.
        let two_lengths =
            || self.all("transfer-encoding").next().is_some() && self.all("content-length").next().is_some();
        if is_1_1 { !says(b"close") && !two_lengths() } else { says(b"keep-alive") && !says(b"close") }
    }
}

fn length_of(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    str::from_utf8(value).ok().filter(|_| digits)?.parse().ok()
}
