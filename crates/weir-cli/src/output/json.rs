//! JSON with line breaks and indentation. Keys keep their order and numbers their spelling, so that the data of an event
//! is shown as it was sent.

/// Indents a valid JSON text.
pub fn pretty(json: &str) -> String {
    let mut pretty = String::with_capacity(json.len() * 2);
    let mut depth = 0;
    let (mut in_string, mut escaped) = (false, false);
    let mut rest = json.chars().peekable();
    while let Some(char) = rest.next() {
        if in_string {
            pretty.push(char);
            in_string = escaped || char != '"';
            escaped = char == '\\' && !escaped;
            continue;
        }
        match char {
            ' ' | '\t' | '\r' | '\n' => {}
            '{' | '[' => {
                pretty.push(char);
                while rest.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                // An empty object or array stays on its line.
                match rest.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => pretty.push(end),
                    None => {
                        depth += 1;
                        line_break(&mut pretty, depth);
                    }
                }
            }
            '}' | ']' => {
                depth -= 1;
                line_break(&mut pretty, depth);
                pretty.push(char);
            }
            ',' => {
                pretty.push(char);
                line_break(&mut pretty, depth);
            }
            ':' => pretty.push_str(": "),
            char => {
                in_string = char == '"';
                pretty.push(char);
            }
        }
    }
    pretty
}

fn line_break(text: &mut String, depth: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth));
}

#[cfg(test)]
mod tests {
    use super::pretty;

    #[test]
    fn order_and_spelling_are_kept() {
        let json = r#"{"b":1.50e3,"a":[1,{"x":"a,\"{ \\"}], "none":{ },"é":[]}"#;
        let expected = r#"{
  "b": 1.50e3,
  "a": [
    1,
    {
      "x": "a,\"{ \\"
    }
  ],
  "none": {},
  "é": []
}"#;
        assert_eq!(pretty(json), expected);
        assert_eq!(pretty("7"), "7");
        assert_eq!(pretty(&pretty(json)), expected);
    }
}
