//! Text for XML and HTML.

/// Escapes a text, and replaces the control characters that XML forbids.
pub fn escaped(raw: &str) -> String {
    let mut escaped = String::with_capacity(raw.len());
    for char in raw.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            char if char.is_control() || matches!(char, '\u{fffe}' | '\u{ffff}') => escaped.push(' '),
            char => escaped.push(char),
        }
    }
    escaped
}

/// Cuts a text to `max` characters, and escapes it.
pub(crate) fn cut(raw: &str, max: usize) -> String {
    match raw.char_indices().nth(max) {
        Some((end, _)) => escaped(&raw[..end]) + "…",
        None => escaped(raw),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_cut() {
        assert_eq!(escaped("<a>&\"'\u{1}"), "&lt;a&gt;&amp;&quot;&#39; ");
        assert_eq!(cut("é<éé", 2), "é&lt;…");
        assert_eq!(cut("é<", 2), "é&lt;");
    }
}
