use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn matches(filter: Value, data: &str) -> bool {
    Filter::parse(&filter).unwrap().matches(&Data::new(data))
}

#[test]
fn every_operator_has_its_meaning() {
    let data =
        r#" {"a": {"b": 7}, "s": "caf\u00e9", "n": null, "f": false, "x/y": 1, "m~n": 2, "": 3, "list": [1, "two"]} "#;
    for (filter, expected) in [
        (json!({"/a/b": 7}), true),
        (json!({"/a/b": {"eq": 7}}), true),
        (json!({"/a/b": "7"}), false),
        (json!({"/a/b": {"gt": 6, "lt": 8}}), true),
        (json!({"/a/b": {"gte": 7, "lte": 7}}), true),
        (json!({"/a/b": {"gt": 7}}), false),
        (json!({"/a/b": {"lt": 7}}), false),
        (json!({"/s": "café"}), true),
        (json!({"/s": {"prefix": "caf"}}), true),
        (json!({"/s": {"prefix": "Caf"}}), false),
        (json!({"/s": {"in": ["tea", "café"]}}), true),
        (json!({"/s": {"gt": 1}}), false),
        (json!({"/a/b": {"prefix": ""}}), false),
        // Missing is not null.
        (json!({"/n": null}), true),
        (json!({"/n": {"exists": true}}), true),
        (json!({"/missing": null}), false),
        (json!({"/missing": {"exists": false}}), true),
        (json!({"/a": {"exists": true}}), true),
        (json!({"/a/b/c": {"exists": true}}), false),
        (json!({"/f": false}), true),
        (json!({"/f": null}), false),
        // Names with escapes, and the empty name.
        (json!({"/x~1y": 1, "/m~0n": 2, "/": 3}), true),
        (json!({"": {"exists": true}}), true),
        // One element of an array must satisfy all operators.
        (json!({"/list": 1}), true),
        (json!({"/list": {"prefix": "tw"}}), true),
        (json!({"/list": {"gt": 1}}), false),
        (json!({"/list/1": "two"}), true),
        (json!({"/list/01": "two"}), false),
        (json!({"/list/2": {"exists": true}}), false),
        (json!({"not": {"/list": "two"}}), false),
        (json!({"or": [{"/f": true}, {"and": [{"/a/b": 7}, {"/n": null}]}]}), true),
    ] {
        assert_eq!(matches(filter.clone(), data), expected, "{filter}");
    }
}

#[test]
fn numbers_are_compared_by_all_their_digits() {
    for (filter, data, expected) in [
        (json!({"": 1}), "1.0", true),
        (json!({"": 1}), "10e-1", true),
        (json!({"": 1}), "1.00000000000000000000000000000001", false),
        (json!({"": 0}), "-0.0e5", true),
        (json!({"": 9_007_199_254_740_993_u64}), "9007199254740993", true),
        (json!({"": 9_007_199_254_740_993_u64}), "9007199254740992", false),
        (json!({"": {"gt": u64::MAX}}), "18446744073709551616", true),
        (json!({"": {"lt": i64::MIN}}), "-9223372036854775809", true),
        (json!({"": {"gt": 0.1}}), "0.1000000000000000000000001", true),
        (json!({"": {"lt": -1}}), "-1e3", true),
        // An exponent that nobody means is no number, and so no match.
        (json!({"": {"gt": 0}}), "1e99999999999999999999", false),
    ] {
        assert_eq!(matches(filter.clone(), data), expected, "{filter} {data}");
    }
}

#[test]
fn data_is_read_as_most_readers_of_json_read_it() {
    assert!(matches(json!({"/a": 2}), r#"{"a": 1, "a": 2}"#), "the last of two members with a name");
    assert!(matches(json!({"/a\"b": "}],"}), r#"{"a\"b":"}],"}"#));
    // Half of a surrogate pair is not a text, but is there.
    assert!(!matches(json!({"/a": {"prefix": ""}}), r#"{"a": "\ud800"}"#));
    assert!(matches(json!({"/a": {"exists": true}}), r#"{"a": "\ud800"}"#));
    let deep = format!("{{\"deep\": {}1{}, \"a\": 1}}", "[".repeat(50_000), "]".repeat(50_000));
    assert!(matches(json!({"/a": 1, "not": {"/deep": 1}}), &deep));
}

#[test]
fn only_the_first_elements_of_an_array_are_compared() {
    let with = |zeros: usize| format!("[{}1]", "0,".repeat(zeros));
    assert!(matches(json!({"": 1}), &with(MAX_ELEMENTS - 1)));
    assert!(!matches(json!({"": 1}), &with(MAX_ELEMENTS)));
    assert!(matches(json!({"/100": 1}), &with(MAX_ELEMENTS)));
}

#[test]
fn each_fault_has_its_place() {
    let nested = |depth: usize| (0..depth).fold(json!({"/a": 1}), |inner, _| json!({"not": inner}));
    let conditions = |count: usize| Value::Object((0..count).map(|at| (format!("/{at}"), json!(1))).collect());
    for (filter, pointers) in [
        (json!({}), vec![""]),
        (json!([]), vec![""]),
        (json!({"a": 1}), vec!["/a"]),
        (json!({"/a~2": 1}), vec!["/~1a~02"]),
        (json!({"/a": []}), vec!["/~1a"]),
        (json!({"/a": {}}), vec!["/~1a"]),
        (json!({"/a": {"ne": 1}}), vec!["/~1a/ne"]),
        (json!({"/a": {"gt": "1"}, "or": [], "not": {"b": 1}}), vec!["/~1a/gt", "/not/b", "/or"]),
        (json!({"and": [{"/a": {"in": [1, [2]]}}]}), vec!["/and/0/~1a/in/1"]),
        (json!({"/a": {"in": []}}), vec!["/~1a/in"]),
        (json!({"/a": {"in": vec![0; 101]}}), vec!["/~1a/in"]),
        (json!({"/a": {"exists": 1}}), vec!["/~1a/exists"]),
        (json!({"/a": {"exists": true, "gt": 1}}), vec!["/~1a"]),
        (json!({"/a": {"eq": {"b": 1}}}), vec!["/~1a/eq"]),
        (json!({"/a": "x".repeat(1025)}), vec!["/~1a"]),
        (json!({"/a": 1e300}), vec!["/~1a"]),
        (json!({"/a/".repeat(9): 1}), vec![&*format!("/{}", "~1a~1".repeat(9))]),
        (json!({"/a": {"in": vec!["x".repeat(100); 50]}}), vec![""]),
        (nested(9), vec!["/not/not/not/not/not/not/not/not/not"]),
        (conditions(65), vec![""]),
    ] {
        let faults = Filter::parse(&filter).expect_err(&filter.to_string());
        let found: Vec<&str> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(found, pointers, "{filter}");
    }
    for filter in [nested(8), conditions(64), json!({"/a": "x".repeat(1024)})] {
        assert!(Filter::parse(&filter).is_ok(), "{filter}");
    }
}

#[test]
fn an_explanation_names_each_condition() {
    let filter = Filter::parse(&json!({"/a": 1, "not": {"/b/c": {"exists": true}}})).unwrap();
    let tested = filter.explain(&Data::new(r#"{"a": 1}"#));
    let expected = [("/~1a", true), ("/not/~1b~1c", false)];
    assert_eq!(tested, expected.map(|(pointer, holds)| Tested { pointer: pointer.to_owned(), holds }));
}

/// A second implementation, on a tree and as simple as possible. Its numbers are thousandths.
fn naive(filter: &Value, data: &Value) -> bool {
    let one = |name: &str, condition: &Value| match name {
        "and" => condition.as_array().unwrap().iter().all(|part| naive(part, data)),
        "or" => condition.as_array().unwrap().iter().any(|part| naive(part, data)),
        "not" => !naive(condition, data),
        pointer => {
            let value = data.pointer(pointer);
            let Value::Object(operators) = condition else { return naive_is(&json!({"eq": condition}), value) };
            match operators.get("exists") {
                Some(exists) => *exists == value.is_some(),
                None => naive_is(condition, value),
            }
        }
    };
    filter.as_object().unwrap().iter().all(|(name, condition)| one(name, condition))
}

fn naive_is(operators: &Value, value: Option<&Value>) -> bool {
    let thousandths = |value: &Value| value.as_f64().map(|float| (float * 1000.0).round() as i64);
    let equal = |a: &Value, b: &Value| match (a, b) {
        (Value::Number(_), Value::Number(_)) => thousandths(a) == thousandths(b),
        (Value::Array(_) | Value::Object(_), _) => false,
        _ => a == b,
    };
    let all = |value: &Value| {
        operators.as_object().unwrap().iter().all(|(name, operand)| match name.as_str() {
            "eq" => equal(value, operand),
            "in" => operand.as_array().unwrap().iter().any(|operand| equal(value, operand)),
            "prefix" => value.as_str().is_some_and(|text| text.starts_with(operand.as_str().unwrap())),
            _ => match (thousandths(value), thousandths(operand).unwrap()) {
                (None, _) => false,
                (Some(number), limit) => match name.as_str() {
                    "gt" => number > limit,
                    "gte" => number >= limit,
                    "lt" => number < limit,
                    _ => number <= limit,
                },
            },
        })
    };
    match value {
        None => false,
        Some(Value::Array(elements)) => elements.iter().any(all),
        Some(value) => all(value),
    }
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..4).prop_map(Value::from),
        (-3000_i32..3000).prop_map(|thousandths| json!(f64::from(thousandths) / 1000.0)),
        "[ab\"\\\\é]{0,3}".prop_map(Value::from),
    ]
}

fn document() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[ab/~]{0,2}", inner, 0..4).prop_map(|members| json!(members)),
        ]
    })
}

fn expression() -> impl Strategy<Value = Value> {
    let number = (-3000_i32..3000).prop_map(|thousandths| json!(f64::from(thousandths) / 1000.0));
    let condition = prop_oneof![
        scalar(),
        any::<bool>().prop_map(|exists| json!({"exists": exists})),
        prop::collection::vec(scalar(), 1..4).prop_map(|values| json!({"in": values})),
        "[ab]{0,2}".prop_map(|prefix| json!({"prefix": prefix})),
        (prop::sample::select(vec!["gt", "gte", "lt", "lte"]), number.clone())
            .prop_map(|(name, limit)| json!({name: limit})),
        (number.clone(), number).prop_map(|(low, high)| json!({"gte": low, "lt": high})),
    ];
    let pointer = prop_oneof![Just(String::new()), "(/([ab01]|~0|~1){0,2}){1,3}"];
    let leaf = prop::collection::btree_map(pointer, condition, 1..3).prop_map(|members| json!(members));
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..3).prop_map(|parts| json!({"and": parts})),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|parts| json!({"or": parts})),
            inner.prop_map(|part| json!({"not": part})),
        ]
    })
}

proptest! {
    #[test]
    fn a_filter_means_what_a_naive_reading_of_it_means(filter in expression(), data in document(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&data).unwrap() } else { data.to_string() };
        let read = Filter::parse(&filter).unwrap();
        prop_assert_eq!(read.matches(&Data::new(&text)), naive(&filter, &data));
        // A filter is stored as its text.
        let stored = Filter::from_stored(&filter.to_string()).unwrap();
        prop_assert_eq!(&stored, &read);
        prop_assert_eq!(stored.fingerprint(), read.fingerprint());
    }

    #[test]
    fn any_text_is_read_without_a_panic(text in "\\PC{0,20}|[\\[\\]{}\",:\\\\a1é ]{0,20}") {
        let filter = Filter::parse(&json!({"/a/0": 1, "": {"prefix": "a"}, "/": {"exists": true}})).unwrap();
        filter.matches(&Data::new(&text));
    }
}
