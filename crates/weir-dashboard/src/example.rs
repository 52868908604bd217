//! The commands in empty states, which fill the page.

use crate::{frame::Me, visit::Visit};

/// Where a command reaches the API, and whether it needs a key.
pub(crate) struct Example {
    url: String,
    needs_key: bool,
}

impl Example {
    pub(crate) fn new(visit: &Visit, me: &Me) -> Self {
        Self { url: visit.public_url(), needs_key: me.keys_required }
    }

    /// Posts an event.
    pub(crate) fn event(&self) -> String {
        self.post("/v1/events", r#"{"type": "video.created", "data": {"id": 7}}"#)
    }

    /// A command that posts JSON.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        let mut lines = vec![format!("curl {}{path}", self.url)];
        if self.needs_key {
            lines.push("-H 'authorization: Bearer YOUR_KEY'".to_owned());
        }
        lines.push("-H 'content-type: application/json'".to_owned());
        lines.push(format!("-d {}", quoted(body)));
        lines.join(" \\\n  ")
    }
}

/// A word of a shell command.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        let example = Example { url: "http://localhost:8080".to_owned(), needs_key: true };
        let expected = "curl http://localhost:8080/v1/events \\\n  -H 'authorization: Bearer YOUR_KEY' \\\n  \
                        -H 'content-type: application/json' \\\n  -d '{\"a\": \"it'\\''s\"}'";
        assert_eq!(example.post("/v1/events", r#"{"a": "it's"}"#), expected);
    }
}
