//! Reads the values of fields: numbers within their range, arrays, and optional values.

use std::ops::RangeInclusive;

use serde_json::Value;
use utoipa::{
    Number,
    openapi::{Schema, schema::Array},
};

use super::fields::{Read, items_of, schema_of};
use crate::errors::{Errors, type_name};

/// `None` if the field is absent, `null` or invalid. An error does not end the reading of the other fields.
impl<T: Read> Read for Option<T> {
    const REQUIRED: &'static str = T::REQUIRED;
    const FIELDS: &'static [&'static str] = T::FIELDS;

    fn absent() -> Option<Self> {
        Some(None)
    }

    fn read(value: Value, schema: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        // For an `Option<Option<_>>` a `null` is `Some(None)`; `None` is an absent field.
        Some(if value.is_null() { T::absent() } else { T::read(value, schema, at, errors) })
    }
}

/// Any value.
impl Read for Value {
    const REQUIRED: &'static str = "is required; it may be any JSON value, including null";

    fn read(value: Value, _: &Schema, _: &str, _: &mut Errors) -> Option<Self> {
        Some(value)
    }
}

impl Read for bool {
    fn read(value: Value, _: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        if value.as_bool().is_none() {
            errors.add(at, format!("must be true or false, not {}", type_name(&value)));
        }
        value.as_bool()
    }
}

/// A whole number in the range of its schema.
impl Read for u32 {
    fn read(value: Value, schema: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let range = range(schema);
        let number = value.as_f64().and_then(|number| whole(number, &range));
        if number.is_none() {
            errors.add(at, outside(&range));
        }
        number
    }
}

/// A number in the range of its schema.
impl Read for f64 {
    fn read(value: Value, schema: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let Value::Number(number) = &value else {
            errors.add(at, format!("must be a number, not {}", type_name(&value)));
            return None;
        };
        let (minimum, maximum) = bounds(schema);
        let (minimum, maximum) = (minimum.unwrap_or(f64::MIN), maximum.unwrap_or(f64::MAX));
        let number = number.as_f64().filter(|number| (minimum..=maximum).contains(number));
        if number.is_none() {
            errors.add(at, format!("must be a number from {minimum} to {maximum}"));
        }
        number
    }
}

/// Reads every item and returns the valid ones. The schema limits the number of items.
impl<T: Read> Read for Vec<T> {
    fn read(value: Value, schema: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let (values, items) = array::<T>(value, schema, at, errors)?;
        let read = |(index, value)| T::read(value, items, &format!("{at}/{index}"), errors);
        Some(values.into_iter().enumerate().filter_map(read).collect())
    }
}

/// The values of an array of `T`, and the schema of its items.
pub(crate) fn array<'s, T: Read>(
    value: Value,
    schema: &'s Schema,
    at: &str,
    errors: &mut Errors,
) -> Option<(Vec<Value>, &'s Schema)> {
    let Value::Array(values) = value else {
        errors.add(at, format!("must be an array, not {}", type_name(&value)));
        return None;
    };
    let Schema::Array(array) = schema else { return Some((values, schema_of(None))) };
    let (least, most) = (array.min_items.unwrap_or(0), array.max_items.unwrap_or(usize::MAX));
    if !(least..=most).contains(&values.len()) {
        errors.add(at, wrong_count::<T>(array));
    }
    Some((values, items_of(&array.items)))
}

fn wrong_count<T: Read>(array: &Array) -> String {
    match (array.min_items, array.max_items) {
        (Some(least), Some(most)) => format!("must contain {least} to {most} {}", T::PLURAL),
        (Some(_), None) => format!("must name one or more of {}", T::PLURAL),
        (None, most) => format!("must contain at most {} {}", most.unwrap_or(usize::MAX), T::PLURAL),
    }
}

/// The range of whole numbers that the schema allows.
pub(crate) fn range(schema: &Schema) -> RangeInclusive<u32> {
    let (minimum, maximum) = bounds(schema);
    // A float outside the range of `u32` becomes the nearest bound.
    minimum.unwrap_or(0.0) as u32..=maximum.map_or(u32::MAX, |maximum| maximum as u32)
}

fn bounds(schema: &Schema) -> (Option<f64>, Option<f64>) {
    let number = |number: &Number| match *number {
        Number::Int(number) => number as f64,
        Number::UInt(number) => number as f64,
        Number::Float(number) => number,
    };
    match schema {
        Schema::Object(object) => (object.minimum.as_ref().map(number), object.maximum.as_ref().map(number)),
        _ => (None, None),
    }
}

/// The number as a whole number, if it is one and in the range. JSON makes no difference between `7` and `7.0`.
pub(crate) fn whole(number: f64, range: &RangeInclusive<u32>) -> Option<u32> {
    let is_whole = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
    is_whole.then_some(number as u32).filter(|number| range.contains(number))
}

/// The error for a number outside the range.
pub(crate) fn outside(range: &RangeInclusive<u32>) -> String {
    format!("must be a whole number from {} to {}", range.start(), range.end())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use utoipa::openapi::ObjectBuilder;

    use super::*;
    use crate::readers::fields::{object, read_with};

    object! {
        #[expect(dead_code, reason = "only its errors are tested")]
        struct Inner {
            number: u32,
        }
    }

    object! {
        #[expect(dead_code, reason = "only its errors are tested")]
        struct Sample {
            list: Option<Vec<bool>>,
            flag: Option<bool>,
            #[schema(minimum = 1, maximum = 5)]
            number: Option<u32>,
            #[schema(minimum = 1, maximum = 5)]
            whole: Option<u32>,
            #[schema(minimum = 0, maximum = 1)]
            ratio: Option<f64>,
            #[schema(min_items = 1, max_items = 2)]
            flags: Option<Vec<bool>>,
            gone: Option<bool>,
            #[schema(value_type = Option<u32>)]
            off: Option<Option<u32>>,
            missing: u32,
            inner: Option<Inner>,
        }
        check = Self::check;
        read_only = &["id"];
    }

    impl Sample {
        fn check(&self, at: &str, errors: &mut Errors) {
            errors.add(format!("{at}/rule"), "is checked");
        }
    }

    fn errors(body: Value) -> Vec<String> {
        let refused = read_with(body, |_: Sample, errors| {
            errors.add("/flag", "is refused by a rule");
            None::<()>
        });
        let problem = refused.unwrap_err();
        problem.errors().iter().map(|error| format!("{} {}", error.pointer, error.detail)).collect()
    }

    #[test]
    fn every_error_has_its_pointer() {
        let body = json!({
            "flag": "x", "list": {}, "number": 7, "whole": 1.5, "ratio": 1.5, "flags": [], "gone": null, "inner": {},
            "a/b": 0, "id": "x",
        });
        assert_eq!(
            errors(body),
            [
                "/list must be an array, not an object",
                "/flag must be true or false, not a string",
                "/number must be a whole number from 1 to 5",
                "/whole must be a whole number from 1 to 5",
                "/ratio must be a number from 0 to 1",
                "/flags must contain 1 to 2 values",
                "/missing is required",
                "/inner/number is required",
                "/a~1b is not a known field: check its spelling, or leave it out",
                "/id is read-only: leave it out",
            ]
        );
    }

    #[test]
    fn rules_are_checked_and_reported_in_the_order_of_the_fields() {
        let found = errors(json!({"flags": [true, 7, true], "missing": 1, "ratio": "half"}));
        assert_eq!(
            found,
            [
                "/flag is refused by a rule",
                "/ratio must be a number, not a string",
                "/flags must contain 1 to 2 values",
                "/flags/1 must be true or false, not a number",
                "/rule is checked",
            ]
        );
    }

    #[test]
    fn null_and_an_absent_field_can_differ() {
        for (body, expected) in [
            (json!({"missing": 1}), None),
            (json!({"missing": 1, "off": null}), Some(None)),
            (json!({"missing": 1, "off": 7}), Some(Some(7))),
        ] {
            let mut errors = Errors::default();
            let read = Sample::read(body, schema_of(None), "", &mut errors).unwrap();
            assert_eq!(read.off, expected);
        }
    }

    #[test]
    fn a_whole_number_may_have_a_fraction_of_zero() {
        let from_one = ObjectBuilder::new().minimum(Some(1)).build();
        for (value, expected) in [
            (json!(36_587), Some(36_587)),
            (json!(36_587.0), Some(36_587)),
            (json!(0.0), None),
            (json!(-1), None),
            (json!(40_000.5), None),
            (json!(4_294_967_296_u64), None),
            (json!("7"), None),
        ] {
            let read = u32::read(value.clone(), &Schema::Object(from_one.clone()), "", &mut Errors::default());
            assert_eq!(read, expected, "{value}");
        }
    }
}
