//! Ranges within queries. When time runs faster, `rate(x[1m])` must cover a shorter range.

/// The units of PromQL in milliseconds. `ms` comes before `m` and `s`, because the first match counts.
const UNITS: [(&str, f64); 7] =
    [("ms", 1.0), ("s", 1e3), ("m", 60e3), ("h", 3_600e3), ("d", 86_400e3), ("w", 604_800e3), ("y", 31_536_000e3)];

/// The query with its ranges (`[5m]`, `[1h:1m]`) divided. Strings are unchanged. Offsets are unchanged too, because no
/// signal has any.
pub(super) fn sped_up(query: &str, times: f64) -> String {
    if times == 1.0 {
        return query.to_owned();
    }
    let mut out = String::with_capacity(query.len());
    let mut quote = None;
    let mut rest = query;
    while let Some(next) = rest.chars().next() {
        // Outside of strings `[` begins a range. `[1h:1m]` has a range and a step, and both are divided.
        if quote.is_none()
            && next == '['
            && let Some((range, after)) = rest[1..].split_once(']')
        {
            let parts: Vec<_> = range.split(':').map(|part| divided(part.trim(), times)).collect();
            out += &format!("[{}]", parts.join(":"));
            rest = after;
            continue;
        }
        // A string ends with the quote that began it. A `[` inside a string begins no range.
        match quote {
            Some(open) if next == open => quote = None,
            None if matches!(next, '"' | '\'' | '`') => quote = Some(next),
            _ => {}
        }
        out.push(next);
        rest = &rest[next.len_utf8()..];
    }
    out
}

/// A divided duration. Text that is not a duration is unchanged.
fn divided(duration: &str, times: f64) -> String {
    match milliseconds(duration) {
        Some(ms) => {
            let ms = (ms / times).round().max(1.0) as u64;
            if ms.is_multiple_of(1_000) { format!("{}s", ms / 1_000) } else { format!("{ms}ms") }
        }
        None => duration.to_owned(),
    }
}

fn milliseconds(duration: &str) -> Option<f64> {
    let mut sum = 0.0;
    let mut rest = duration;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let number: f64 = rest[..digits].parse().ok()?;
        let (unit, ms) = UNITS.iter().find(|(unit, _)| rest[digits..].starts_with(unit))?;
        sum += number * ms;
        rest = &rest[digits + unit.len()..];
    }
    (sum > 0.0).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_divided_and_strings_are_unchanged() {
        let rows = [
            ("rate(a[1m])", "rate(a[6s])"),
            ("max_over_time(rate(a[1m30s])[1h:15s])", "max_over_time(rate(a[9s])[360s:1500ms])"),
            (r#"a{b=~"[5m]"} / 0.25"#, r#"a{b=~"[5m]"} / 0.25"#),
            ("rate(a{b='['}[30s])", "rate(a{b='['}[3s])"),
            ("a[what]", "a[what]"),
        ];
        for (query, expected) in rows {
            assert_eq!(sped_up(query, 10.0), expected);
        }
    }
}
