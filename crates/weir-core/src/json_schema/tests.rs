use serde_json::{Value, json};

use super::*;

fn fits(schema: &Value, data: &Value) -> bool {
    let parsed = JsonSchema::parse(schema).unwrap_or_else(|faults| panic!("{schema} {faults:?}"));
    parsed.check(data, data.to_string().len()).is_ok()
}

#[test]
fn keywords_mean_what_json_schema_says() {
    let list = json!({"$ref": "#/$defs/list", "$defs": {"list": {
        "type": ["object", "null"], "properties": {"next": {"$ref": "#/$defs/list"}, "value": {"type": "integer"}},
        "additionalProperties": false
    }}});
    for (schema, valid, invalid) in [
        (json!(true), vec![json!(null), json!(1)], vec![]),
        (json!(false), vec![], vec![json!(null)]),
        (json!({}), vec![json!(null)], vec![]),
        (json!({"type": "integer"}), vec![json!(1), json!(1.0), json!(u64::MAX)], vec![json!(1.5), json!("1")]),
        (json!({"type": ["string", "null"]}), vec![json!(""), json!(null)], vec![json!(0)]),
        (json!({"const": 1.0}), vec![json!(1)], vec![json!("1"), json!(true)]),
        (json!({"enum": [{"a": [1, 2]}, "x"]}), vec![json!({"a": [1.0, 2]}), json!("x")], vec![json!({"a": [2, 1]})]),
        (
            json!({"minimum": 1, "exclusiveMaximum": 2.5}),
            vec![json!(1), json!(2.4), json!("x")],
            vec![json!(0), json!(2.5)],
        ),
        (
            json!({"maximum": 9_007_199_254_740_992_u64}),
            vec![json!(9_007_199_254_740_992_u64)],
            vec![json!(9_007_199_254_740_993_u64)],
        ),
        (json!({"exclusiveMinimum": 0}), vec![json!(0.1)], vec![json!(0)]),
        (json!({"multipleOf": 0.1}), vec![json!(0.3), json!(2)], vec![json!(0.35)]),
        (json!({"multipleOf": 3}), vec![json!(9), json!(9.0)], vec![json!(10)]),
        (
            json!({"minLength": 2, "maxLength": 3}),
            vec![json!("éé"), json!("abc"), json!(1)],
            vec![json!("é"), json!("abcd")],
        ),
        (json!({"pattern": "^[a-z]+\\.v[0-9]$"}), vec![json!("ab.v1")], vec![json!("ab.v12")]),
        (json!({"minItems": 1, "maxItems": 2}), vec![json!([1]), json!({})], vec![json!([]), json!([1, 2, 3])]),
        (
            json!({"uniqueItems": true}),
            vec![json!([1, "1", true])],
            vec![json!([1, 1.0]), json!([{"a": 1, "b": 2}, {"b": 2, "a": 1}])],
        ),
        (
            json!({"prefixItems": [{"type": "string"}], "items": {"type": "number"}}),
            vec![json!(["a", 1]), json!([])],
            vec![json!([1]), json!(["a", "b"])],
        ),
        (json!({"contains": {"const": 1}}), vec![json!([2, 1])], vec![json!([]), json!([2])]),
        (
            json!({"contains": {"const": 1}, "minContains": 2, "maxContains": 2}),
            vec![json!([1, 1])],
            vec![json!([1]), json!([1, 1, 1])],
        ),
        (json!({"contains": {"const": 1}, "minContains": 0}), vec![json!([])], vec![]),
        (json!({"required": ["a"]}), vec![json!({"a": null}), json!([])], vec![json!({"b": 1})]),
        (
            json!({"properties": {"a": {"type": "string"}}, "patternProperties": {"^x_": {"type": "number"}}, "additionalProperties": {"type": "null"}}),
            vec![json!({"a": "", "x_b": 1, "c": null})],
            vec![json!({"a": 1}), json!({"x_b": ""}), json!({"c": 1})],
        ),
        (json!({"propertyNames": {"maxLength": 2}}), vec![json!({"ab": 1})], vec![json!({"abc": 1})]),
        (
            json!({"minProperties": 1, "maxProperties": 1}),
            vec![json!({"a": 1})],
            vec![json!({}), json!({"a": 1, "b": 2})],
        ),
        (
            json!({"dependentRequired": {"a": ["b"], "c": ["d"]}}),
            vec![json!({"a": 1, "b": 2}), json!({})],
            vec![json!({"a": 1}), json!({"c": 1})],
        ),
        (json!({"dependentSchemas": {"a": {"required": ["b"]}}}), vec![json!({"b": 1})], vec![json!({"a": 1})]),
        (json!({"allOf": [{"minimum": 1}, {"maximum": 2}]}), vec![json!(1)], vec![json!(3)]),
        (json!({"anyOf": [{"type": "string"}, {"minimum": 5}]}), vec![json!("a"), json!(5)], vec![json!(4)]),
        (json!({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}), vec![json!(4), json!(9)], vec![json!(6), json!(5)]),
        (json!({"not": {"required": ["secret"]}}), vec![json!({})], vec![json!({"secret": 1})]),
        (
            json!({"if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}),
            vec![json!({"kind": "a", "b": 1}), json!({"c": 1})],
            vec![json!({"kind": "a"}), json!({})],
        ),
        (
            json!({"format": "email", "title": "x", "x-owner": "y", "$schema": "http://json-schema.org/draft-07/schema#"}),
            vec![json!("no address")],
            vec![],
        ),
        (
            list,
            vec![json!({"value": 1, "next": {"value": 2, "next": null}})],
            vec![json!({"next": {"next": {"value": "x"}}}), json!({"other": 1})],
        ),
        (
            json!({"properties": {"a/b~c": {"type": "string"}}, "items": {"$ref": "#/properties/a~1b~0c"}}),
            vec![json!(["x"])],
            vec![json!([1])],
        ),
    ] {
        for data in valid {
            assert!(fits(&schema, &data), "{data} fits {schema}");
        }
        for data in invalid {
            assert!(!fits(&schema, &data), "{data} does not fit {schema}");
        }
    }
}

#[test]
fn faults_name_their_place_in_the_data() {
    let schema = json!({
        "required": ["id", "total"],
        "properties": {"id": {"pattern": "^ord_"}, "lines": {"items": {"properties": {"a/b": {"type": "integer"}}}},
            "state": {"enum": ["open", "paid"]}, "way": {"anyOf": [{"const": 1}, {"const": 2}]}},
        "additionalProperties": false
    });
    let data = json!({"id": "x", "lines": [{}, {"a/b": "1"}], "state": "closed", "way": 3, "colour": 1});
    let faults = JsonSchema::parse(&schema).unwrap().check(&data, 100).unwrap_err();
    let found: Vec<_> = faults.iter().map(|fault| format!("{} {}", fault.pointer, fault.detail)).collect();
    assert_eq!(
        found,
        [
            " must have a member `total`",
            "/colour must not be there",
            "/id must match `^ord_`",
            "/lines/1/a~1b must be integer, not string",
            "/state must be `\"open\"` or `\"paid\"`",
            "/way must fit one of the 2 schemas of `anyOf`, and fits none",
        ]
    );
    let many = JsonSchema::parse(&json!({"items": {"type": "string"}})).unwrap();
    assert_eq!(many.check(&json!(vec![1; 1_000]), 2_001).unwrap_err().len(), MAX_FAULTS);
}

#[test]
fn each_fault_of_a_schema_has_its_place() {
    for (schema, pointer) in [
        (json!(1), ""),
        (json!({"requred": ["a"]}), "/requred"),
        (json!({"unevaluatedProperties": false}), "/unevaluatedProperties"),
        (json!({"type": "int"}), "/type"),
        (json!({"enum": []}), "/enum"),
        (json!({"properties": {"a/b": {"minimum": "1"}}}), "/properties/a~1b/minimum"),
        (json!({"properties": []}), "/properties"),
        (json!({"items": [{}]}), "/items"),
        (json!({"allOf": [{}, {"not": 1}]}), "/allOf/1/not"),
        (json!({"$defs": {"unused": {"pattern": "("}}}), "/$defs/unused/pattern"),
        (json!({"pattern": "(?=a)"}), "/pattern"),
        (json!({"pattern": "(a{100}){100}{100}"}), "/pattern"),
        (json!({"$ref": "https://example.com/schema.json"}), "/$ref"),
        (json!({"$ref": "#/$defs/missing"}), "/$ref"),
        (json!({"$schema": "http://json-schema.org/draft-04/schema#"}), "/$schema"),
        (json!({"multipleOf": 0}), "/multipleOf"),
        (json!({"minLength": -1}), "/minLength"),
        (json!({"required": "a"}), "/required"),
        (json!({"if": {}, "then": 1}), "/then"),
        (json!({"dependentRequired": {"a": "b"}}), "/dependentRequired/a"),
        // These would never end.
        (json!({"$ref": "#"}), ""),
        (json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#"}}}}), ""),
        (json!({"description": "x".repeat(MAX_BYTES)}), ""),
        (json!({"allOf": vec![json!({"pattern": "a"}); 65]}), ""),
    ] {
        let faults = JsonSchema::parse(&schema).expect_err(&schema.to_string());
        assert_eq!(faults[0].pointer, pointer, "{schema} {faults:?}");
    }
}

/// Schemas that multiply the work: each is stopped by the budget, and so ends whatever it says.
#[test]
fn the_work_of_a_check_is_bounded() {
    let doubled = |levels: usize| {
        let mut defs: serde_json::Map<String, Value> = (0..levels)
            .map(|level| {
                (format!("d{level}"), json!({"allOf": vec![json!({"$ref": format!("#/$defs/d{}", level + 1)}); 2]}))
            })
            .collect();
        defs.insert(format!("d{levels}"), json!({"type": "integer"}));
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    };
    let alternatives: Vec<_> =
        (0..800).map(|at| json!({"properties": {"a": {"const": format!("x{at}")}}, "required": ["a"]})).collect();
    // Each element fits the last alternative.
    let elements = json!(vec![json!({"a": "x799"}); 20_000]);
    let text = json!("a".repeat(250_000));
    for (schema, data) in [
        (doubled(60), json!(1)),
        (json!({"items": {"anyOf": alternatives}}), elements.clone()),
        (
            json!({"allOf": vec![json!({"uniqueItems": true, "contains": {"not": {"uniqueItems": true}}}); 1_000]}),
            elements,
        ),
        (json!({"allOf": vec![json!({"pattern": "(a|aa|b){1,100}$"}); 64]}), text),
    ] {
        let faults = JsonSchema::parse(&schema).unwrap().check(&data, data.to_string().len()).unwrap_err();
        assert!(faults[0].detail.starts_with("needs more work"), "{faults:?}");
    }
    assert!(fits(&doubled(8), &json!(1)));
    // The stack is bounded too.
    let chain: serde_json::Map<String, Value> = (0..2_000)
        .map(|at| (format!("{at}"), json!({"$ref": format!("#/$defs/{}", at + 1)})))
        .chain([("2000".to_owned(), json!(true))])
        .collect();
    let faults =
        JsonSchema::parse(&json!({"$ref": "#/$defs/0", "$defs": chain})).unwrap().check(&json!(1), 1).unwrap_err();
    assert!(faults[0].detail.starts_with("leads deeper"), "{faults:?}");
}
