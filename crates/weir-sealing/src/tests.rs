use proptest::prelude::*;

use super::*;

/// `none` or keys of these bytes.
fn ring(text: &str) -> Keyring {
    let key = |item: &str| item.parse::<u8>().map_or(item.to_owned(), |byte| STANDARD.encode([byte; 32]));
    text.split(',').map(key).collect::<Vec<_>>().join(",").parse().unwrap()
}

fn columns() -> impl Strategy<Value = &'static Column> {
    (0..COLUMNS.len()).prop_map(|at| &COLUMNS[at])
}

fn stored(ring: &Keyring, column: &Column, row: &[u8], value: &str) -> Vec<u8> {
    match column.form {
        Form::Text => ring.seal_text(column, row, value).into_owned().into_bytes(),
        Form::Bytes => ring.seal_bytes(column, row, value.as_bytes()).into_owned(),
    }
}

fn opened(ring: &Keyring, column: &Column, row: &[u8], stored: &[u8]) -> Result<String, Unopened> {
    match column.form {
        Form::Text => ring.open_text(column, row, String::from_utf8(stored.to_owned()).unwrap()),
        Form::Bytes => Ok(String::from_utf8(ring.open_bytes(column, row, stored)?.into_owned()).unwrap()),
    }
}

proptest! {
    #[test]
    fn a_value_is_opened_as_it_was_sealed_and_its_text_is_not_in_what_is_stored(
        column in columns(), row: [u8; 16], value in "\\{[ -~é]{8,200}",
    ) {
        let ring = ring("7,8").sealing_payloads(true);
        let sealed = stored(&ring, column, &row, &value);
        prop_assert!(!sealed.windows(8).any(|part| value.as_bytes().windows(8).any(|clear| clear == part)));
        prop_assert_eq!(key_of(column, &sealed), ring.first_id());
        prop_assert_eq!(opened(&ring, column, &row, &sealed), Ok(value.clone()));
        prop_assert_ne!(stored(&ring, column, &row, &value), sealed, "the nonce is random");
    }

    #[test]
    fn a_value_opens_only_in_its_own_row_and_column_and_undamaged(
        column in columns(), other in columns(), row: [u8; 16], other_row: [u8; 16], at: prop::sample::Index, bit in 0u8..8,
    ) {
        let ring = ring("7").sealing_payloads(true);
        let sealed = stored(&ring, column, &row, "{\"a\":1}");
        if other_row != row {
            prop_assert_eq!(opened(&ring, column, &other_row, &sealed), Err(Unopened::Damaged { column: column.name }));
        }
        if other != column && other.form == column.form {
            prop_assert!(opened(&ring, other, &row, &sealed).is_err());
        }
        if column.form == Form::Bytes {
            let mut damaged = sealed.clone();
            // The first byte says whether the value is sealed.
            let at = 1 + at.index(sealed.len() - 1);
            damaged[at] ^= 1u8 << bit;
            prop_assert!(ring.open_bytes(column, &row, &damaged).is_err());
        }
    }

    #[test]
    fn clear_values_are_stored_and_read_as_they_are(column in columns(), row: [u8; 16], value in "\\{[ -~]{0,50}") {
        for ring in [Keyring::default(), ring("none,7").sealing_payloads(true)] {
            prop_assert_eq!(stored(&ring, column, &row, &value), value.as_bytes());
        }
        prop_assert_eq!(opened(&ring("7"), column, &row, value.as_bytes()), Ok(value));
    }

    #[test]
    fn any_text_of_a_receiver_is_kept(text: String, seals: bool) {
        let answers = ["sealed:", "sealed:clear:", "sealed:00000000:", "sealed:00000000:AAAA", &text];
        let ring = ring("7").sealing_payloads(seals);
        for text in answers {
            let stored = ring.seal_text(&RESPONSE_BODY, &row(&[1; 16], 2), text).into_owned();
            prop_assert_eq!(ring.open_text(&RESPONSE_BODY, &row(&[1; 16], 2), stored), Ok(text.to_owned()));
        }
    }
}

#[test]
fn every_key_opens_and_a_missing_one_is_named() {
    let old = ring("1");
    let sealed = stored(&old, &SIGNING, &[1; 16], "{}");
    assert_eq!(opened(&ring("2,1"), &SIGNING, &[1; 16], &sealed), Ok("{}".to_owned()));
    assert_eq!(opened(&ring("none,1"), &SIGNING, &[1; 16], &sealed), Ok("{}".to_owned()));
    let key = old.first_id().unwrap();
    let missing = opened(&ring("2"), &SIGNING, &[1; 16], &sealed).unwrap_err();
    assert_eq!(missing, Unopened::KeyMissing { column: "destinations.signing", key });
    assert!(missing.to_string().contains(&key.to_string()), "{missing}");
}

#[test]
fn a_rotation_leaves_only_the_first_key_and_none_leaves_no_key() {
    for column in COLUMNS {
        let (clear, row) = (b"{}".as_slice(), [1; 16]);
        let sealed = stored(&ring("1").sealing_payloads(true), column, &row, "{}");
        // From an old key to a new one, also of payloads that are clear when they are new.
        let rotated = ring("2,1").renewed(column, &row, &sealed).unwrap().unwrap();
        assert_eq!(key_of(column, &rotated), ring("2").first_id());
        assert_eq!(ring("2").renewed(column, &row, &rotated), Ok(None));
        assert_eq!(ring("none,2").renewed(column, &row, &rotated), Ok(Some(clear.to_owned())));
        assert_eq!(ring("none,2").sealing_payloads(true).renewed(column, &row, clear), Ok(None));
        // Clear values are sealed as new ones are.
        let is_sealed = ring("2").renewed(column, &row, clear).unwrap().is_some();
        assert_eq!(is_sealed, column.holds == Holds::Secrets, "{}", column.name);
        assert!(ring("2").sealing_payloads(true).renewed(column, &row, clear).unwrap().is_some());
        assert!(ring("2").renewed(column, &row, &sealed).unwrap_err().to_string().contains("does not have"));
    }
}

#[test]
fn keys_are_base64_of_32_bytes_and_no_error_or_debug_text_shows_one() {
    let good = STANDARD.encode([7; 32]);
    let parsed: Keyring = format!(" {good} , {}\n", STANDARD.encode([8; 32])).parse().unwrap();
    assert_eq!((parsed.len(), parsed.first_id()), (2, ring("7").first_id()));
    assert!(!format!("{parsed:?}").contains(&good), "{parsed:?}");
    assert_eq!("".parse(), Ok(Keyring::default()));
    let refused = |text: &str| text.parse::<Keyring>().unwrap_err();
    for (text, error) in [
        ("hush".to_owned(), InvalidKeys::NotAKey(1)),
        (format!("{good},{}", STANDARD.encode([7; 31])), InvalidKeys::NotAKey(2)),
        (format!("{good},{good}"), InvalidKeys::Twice(2)),
        ("none".to_owned(), InvalidKeys::NoneAlone),
        (format!("{good},none"), InvalidKeys::NoneAlone),
        ((0..17).map(|byte| STANDARD.encode([byte; 32])).collect::<Vec<_>>().join(","), InvalidKeys::TooMany),
    ] {
        assert_eq!(refused(&text), error);
        assert!(!error.to_string().contains("hush"));
    }
}

/// What one version has stored, every later one must open.
#[test]
fn the_form_of_sealed_values_does_not_change() {
    let ring = ring("7");
    let signing = "sealed:8cb82fcb:AYy4L8uOrhmk6M4w9xvJMETgXHn9dlaBVOi0bioyL2X/Xwg=";
    assert_eq!(ring.open_text(&SIGNING, &[1; 16], signing.to_owned()), Ok("{}".to_owned()));
    let body = STANDARD.decode("AYy4L8vr1roxMh4iUflje13i5kfXd1i0x8bP8vkyH01Z/ps=").unwrap();
    assert_eq!(ring.open_bytes(&BODY, &[1; 16], &body).unwrap(), b"{}".as_slice());
    assert_eq!(body.len(), 2 + OVERHEAD);
    let answer = "sealed:8cb82fcb:AYy4L8tTF8PTzf72SO1ka3XQ++jcgZhsrkf8tG8N5+6hxqo=";
    assert_eq!(ring.open_text(&RESPONSE_BODY, &row(&[1; 16], 2), answer.to_owned()), Ok("ok".to_owned()));
}
