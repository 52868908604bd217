//! What a text must be, for the readers of fields and for the hot path of ingest, which keeps its own copies.

use weir_core::event::{MAX_TYPE_LEN, valid_type};

const MAX_KEY_LEN: usize = 255;
/// A key is stored with every delivery as 128 bytes at most; a request need not carry more than this to be hashed.
const MAX_LIMIT_KEY_CHARS: usize = 2_048;
const MAX_TENANT_LEN: usize = 128;
/// The prefix of alert events, which only Weir creates.
const RESERVED_TYPES: &str = "weir.";
/// What the type of an event must be.
const TYPE_FORM: &str = "must be dot-separated words of letters, digits, `_` and `-`, such as `video.created`";

/// Checks that `text` is a valid name of a tenant.
pub(crate) fn check_tenant(text: &str) -> Result<(), &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    if (1..=MAX_TENANT_LEN).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(());
    }
    Err("must be 1 to 128 letters, digits, `_`, `-`, `.` or `:`")
}

/// Checks that a text for people has no character which nobody sees: no control character, and none that changes the
/// direction of the text around it, by which one name can look like another.
pub(crate) fn check_visible(text: &str) -> Result<(), String> {
    if text.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    let turns = |char: char| matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match text.chars().find(|char| turns(*char)) {
        None => Ok(()),
        Some(char) => Err(format!(
            "must not contain the character U+{:04X}, which changes the direction of the text around it",
            u32::from(char)
        )),
    }
}

/// Checks the type of an event that a producer sends.
pub(crate) fn check_new_type(text: &str) -> Result<(), String> {
    match text {
        _ if text.len() > MAX_TYPE_LEN => Err(format!("must be at most {MAX_TYPE_LEN} characters long")),
        _ if !valid_type(text) => Err(TYPE_FORM.to_owned()),
        _ if text.starts_with(RESERVED_TYPES) => {
            Err("must not begin with `weir.`, which is reserved for alerts".to_owned())
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_idempotency_key(text: &str) -> Result<(), &'static str> {
    let printable = |byte: u8| (b' '..=b'~').contains(&byte);
    let fits = (1..=MAX_KEY_LEN).contains(&text.len()) && text.bytes().all(printable);
    if fits { Ok(()) } else { Err("must be 1 to 255 printable ASCII characters") }
}

/// Checks a coalesce key or an ordering key.
pub(crate) fn check_event_key(text: &str) -> Result<(), &'static str> {
    let fits = (1..=MAX_KEY_LEN).contains(&text.len()) && !text.contains(char::is_control);
    if fits { Ok(()) } else { Err("must be 1 to 255 bytes long, without control characters") }
}

/// Checks a limit key.
pub(crate) fn check_limit_key(text: &str) -> Result<(), &'static str> {
    let fits = text.chars().count() <= MAX_LIMIT_KEY_CHARS && !text.contains(char::is_control);
    if fits { Ok(()) } else { Err("must be at most 2048 characters long, without control characters") }
}
