//! How deeply JSON is nested, without parsing it into a tree.

/// The deepest nesting of the data of an event. Receivers parse it with parsers that recurse, many of which refuse a
/// little more, and people read it indented.
pub(crate) const MAX_DEPTH: usize = 64;

/// Whether valid JSON has more than [`MAX_DEPTH`] arrays and objects within each other.
pub(crate) fn is_too_deep(json: &[u8]) -> bool {
    // No text with fewer brackets can be too deep: most data is this short.
    if json.len() <= MAX_DEPTH {
        return false;
    }
    let (mut depth, mut rest) = (0_usize, json.iter());
    while let Some(byte) = rest.next() {
        match byte {
            b'[' | b'{' if depth == MAX_DEPTH => return true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            // Brackets in a string count for nothing.
            b'"' => {
                while let Some(within) = rest.next() {
                    match within {
                        b'"' => break,
                        b'\\' => drop(rest.next()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize, core: &str) -> String {
        let pairs = depth / 2;
        let odd = if depth % 2 == 1 { ("[", "]") } else { ("", "") };
        format!("{}{}{core}{}{}", r#"{"a":["#.repeat(pairs), odd.0, odd.1, "]}".repeat(pairs))
    }

    #[test]
    fn arrays_and_objects_count_and_brackets_in_strings_do_not() {
        for core in ["7", "[],{}", r#""\"[[[[{{{{ \\""#, r#""[\\","]""#, "[\n]  , {}"] {
            let (own, core) = (usize::from(core.contains("[]") || core.contains("[\n")), core);
            assert!(!is_too_deep(nested(MAX_DEPTH - own, core).as_bytes()), "{core}");
            assert!(is_too_deep(nested(MAX_DEPTH - own + 1, core).as_bytes()), "{core}");
        }
        let wide = format!("[{}7]", "[[]],".repeat(10_000));
        assert!(!is_too_deep(wide.as_bytes()));
        assert!(is_too_deep("[".repeat(100_000).as_bytes()));
    }
}
