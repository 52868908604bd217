//! JSON as people read it: indented, with every token as it was sent. Parsing and writing again would change numbers,
//! escapes and repeated keys.

use std::borrow::Cow;

/// How many times as long as the text its indented form may be. JSON of this depth is legible without it, or by nobody.
const MAX_GROWTH: usize = 8;
/// A short text may grow by this much in any case.
const MIN_GROWTH_BYTES: usize = 64 * 1024;

/// Indents valid JSON. Whitespace between tokens is replaced; the tokens stay byte for byte. Deeply nested JSON, whose
/// indentation would take far more memory than the text itself, is returned as it is.
pub(crate) fn indented(json: &str) -> Cow<'_, str> {
    let most = json.len() * MAX_GROWTH + MIN_GROWTH_BYTES;
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
    let mut rest = json.chars().peekable();
    while let Some(character) = rest.next() {
        if in_text {
            (in_text, is_escaped) = within_text(character, is_escaped);
            out.push(character);
            continue;
        }
        // Two spaces for each level: the longest line break.
        if out.len() + 2 * depth > most {
            return json.into();
        }
        match character {
            space if space.is_ascii_whitespace() => {}
            '{' | '[' => {
                out.push(character);
                while rest.next_if(char::is_ascii_whitespace).is_some() {}
                if let Some(close) = rest.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    break_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                break_line(&mut out, depth);
                out.push(character);
            }
            ',' => {
                out.push(',');
                break_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            _ => {
                in_text = character == '"';
                out.push(character);
            }
        }
    }
    out.into()
}

/// Whether a text continues after this character, and whether the next one is escaped.
fn within_text(character: char, is_escaped: bool) -> (bool, bool) {
    match character {
        _ if is_escaped => (true, false),
        '\\' => (true, true),
        '"' => (false, false),
        _ => (true, false),
    }
}

fn break_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_kept_as_they_were_sent() {
        let sent = r#"{"b":1.0e2,  "a" : [ 1,{}, [], "x \" , { \\" ],"a":"é"}"#;
        let shown = "{\n  \"b\": 1.0e2,\n  \"a\": [\n    1,\n    {},\n    [],\n    \"x \\\" , { \\\\\"\n  ],\n  \"a\": \"é\"\n}";
        assert_eq!(indented(sent), shown);
        assert_eq!(["7", "\"a b\"", "{}", "null"].map(indented), ["7", "\"a b\"", "{}", "null"]);
    }

    #[test]
    fn deeply_nested_json_is_shown_as_it_was_sent() {
        let nested = |depth: usize, core: &str| format!("{}{core}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(indented(&nested(2, "7")), "[\n  [\n    7\n  ]\n]");
        assert!(indented(&nested(64, "7")).contains(&format!("\n{}7", "  ".repeat(64))));
        for deep in [nested(100_000, "7"), nested(64, &format!("{}1", "1,".repeat(100_000)))] {
            assert_eq!(indented(&deep), deep);
        }
    }
}
