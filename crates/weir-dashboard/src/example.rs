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

    /// Whether a program needs a key.
    pub(crate) fn needs_key(&self) -> bool {
        self.needs_key
    }

    /// The line of the Python client that posts an event, and the lines around it.
    pub(crate) fn python(&self, event_type: &str, tenant: Option<&str>) -> String {
        let key = if self.needs_key { ", key=\"YOUR_KEY\"" } else { "" };
        let tenant = tenant.map(|tenant| format!(", tenant={}", literal(tenant))).unwrap_or_default();
        format!(
            "from weir_client import Weir\n\nwith Weir({}{key}) as weir:\n    weir.events.post({}, {{\"id\": 7}}{tenant})",
            literal(&self.url),
            literal(event_type)
        )
    }

    /// The same in TypeScript.
    pub(crate) fn typescript(&self, event_type: &str, tenant: Option<&str>) -> String {
        let key = if self.needs_key { ", key: \"YOUR_KEY\"" } else { "" };
        let tenant = tenant.map(|tenant| format!(", tenant: {}", literal(tenant))).unwrap_or_default();
        format!(
            "import {{ Weir }} from \"@weir/client\";\n\nconst weir = new Weir({{ url: {}{key} }});\nawait weir.events.post({{ type: {}, data: {{ id: 7 }}{tenant} }});",
            literal(&self.url),
            literal(event_type)
        )
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

/// A string of Python and of TypeScript: both read the strings of JSON.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
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

    #[test]
    fn the_lines_of_the_clients_can_be_pasted_into_a_program() {
        let with_key = Example { url: "http://localhost:8080".to_owned(), needs_key: true };
        let expected = "from weir_client import Weir\n\nwith Weir(\"http://localhost:8080\", key=\"YOUR_KEY\") as weir:\n    \
                        weir.events.post(\"video.created\", {\"id\": 7}, tenant=\"acme\")";
        assert_eq!(with_key.python("video.created", Some("acme")), expected);
        let open = Example { needs_key: false, ..with_key };
        let expected = "import { Weir } from \"@weir/client\";\n\nconst weir = new Weir({ url: \"http://localhost:8080\" });\n\
                        await weir.events.post({ type: \"a\", data: { id: 7 } });";
        assert_eq!(open.typescript("a", None), expected);
    }
}
