//! Reads JSON objects field by field and collects all errors, each with its JSON pointer.
//!
//! Serde stops at the first error, but a client should get all errors at once. An absent field and `null` both mean the
//! default, unless the schema of the field says otherwise.

use std::sync::LazyLock;

use serde_json::{Map, Value};
use utoipa::{
    PartialSchema,
    openapi::{
        RefOr, Schema,
        schema::{ArrayItems, Object, SchemaType, Type},
    },
};

use crate::{
    errors::{Errors, escape, type_name},
    problem::ApiResult,
};

/// A value that a request can contain.
pub(crate) trait Read: Sized {
    /// The refusal of an absent field that must be given.
    const REQUIRED: &'static str = "is required";
    /// The values in the plural, for the refusal of an array with too many or too few of them.
    const PLURAL: &'static str = "values";
    /// The fields of an object, in the order of their declaration.
    const FIELDS: &'static [&'static str] = &[];
    /// The fields of an object that clients see but cannot set.
    const READ_ONLY: &'static [&'static str] = &[];

    /// The value of an absent field; `None` if the field must be given.
    fn absent() -> Option<Self> {
        None
    }

    /// Reads the value at the pointer `at` and adds every error. `schema` is the schema of the field: it has the range
    /// of a number and the allowed number of items.
    fn read(value: Value, schema: &Schema, at: &str, errors: &mut Errors) -> Option<Self>;
}

/// Reads a whole body.
pub(crate) fn read<T: Read>(body: Value) -> ApiResult<T> {
    read_with(body, |request, _| Some(request))
}

/// Reads a body with `rules` that depend on more than the body, such as the configuration. The rules see the valid
/// fields and can add errors; an invalid field looks absent. Errors are reported in the order of the fields.
pub(crate) fn read_with<T: Read, U>(body: Value, rules: impl FnOnce(T, &mut Errors) -> Option<U>) -> ApiResult<U> {
    let mut errors = Errors::default();
    let read = T::read(body, &Schema::default(), "", &mut errors).and_then(|request| rules(request, &mut errors));
    errors.sort_by_field(T::FIELDS);
    errors.or(read)
}

/// Declares an object that requests contain: a struct with its schema and its reader.
///
/// A field of a plain type must be given; an `Option` is `None` if the field is absent, `null` or invalid. With
/// `Option<Option<_>>` an absent field and `null` differ. After the struct may follow `check = Self::check;`, a
/// function that adds the errors of rules between fields, `read_only = NAMES;` and `plural = "names";`, as in [`Read`].
macro_rules! object {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_visibility:vis $field:ident: $kind:ty,)*
        }
        $(check = $check:path;)?
        $(read_only = $read_only:expr;)?
        $(plural = $plural:expr;)?
    ) => {
        #[derive(utoipa::ToSchema)]
        $(#[$meta])*
        #[serde(deny_unknown_fields)]
        $visibility struct $name {
            $($(#[$field_meta])* $field_visibility $field: $kind,)*
        }

        impl $crate::readers::fields::Read for $name {
            const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];
            $(const READ_ONLY: &'static [&'static str] = $read_only;)?
            $(const PLURAL: &'static str = $plural;)?

            fn read(
                value: serde_json::Value,
                _: &utoipa::openapi::Schema,
                at: &str,
                errors: &mut $crate::errors::Errors,
            ) -> Option<Self> {
                static SCHEMA: std::sync::LazyLock<utoipa::openapi::schema::Object> =
                    std::sync::LazyLock::new($crate::readers::fields::object_schema::<$name>);
                let mut fields = $crate::readers::fields::Fields::open(value, &SCHEMA, at, errors)?;
                $(let $field = fields.take(stringify!($field));)*
                fields.close(<Self as $crate::readers::fields::Read>::READ_ONLY);
                let object = Self { $($field: $field?,)* };
                $($check(&object, at, errors);)?
                Some(object)
            }
        }
    };
}
pub(crate) use object;

/// The schema of an object, for its reader.
pub(crate) fn object_schema<T: PartialSchema>() -> Object {
    match T::schema() {
        RefOr::T(Schema::Object(object)) => object,
        _ => Object::default(),
    }
}

/// An object that is being read. Every field is taken once; the fields that remain at [`Fields::close`] are unknown.
pub(crate) struct Fields<'e> {
    fields: Map<String, Value>,
    schema: &'static Object,
    at: String,
    errors: &'e mut Errors,
}

impl<'e> Fields<'e> {
    /// Starts to read `value`, which is at the pointer `at` (empty for the whole body).
    pub(crate) fn open(value: Value, schema: &'static Object, at: &str, errors: &'e mut Errors) -> Option<Self> {
        match value {
            Value::Object(fields) => Some(Self { fields, schema, at: at.to_owned(), errors }),
            other => {
                errors.add(at, format!("must be an object, not {}", type_name(&other)));
                None
            }
        }
    }

    /// The field of this name. `None` if it must be given and is absent or invalid.
    pub(crate) fn take<T: Read>(&mut self, name: &str) -> Option<T> {
        let name = name.trim_start_matches("r#");
        let at = format!("{}/{name}", self.at);
        let property = self.schema.properties.get(name);
        let value = self.fields.remove(name).filter(|value| !value.is_null() || property.is_none_or(allows_null));
        match value {
            Some(value) => T::read(value, schema_of(property), &at, self.errors),
            None => {
                if self.schema.required.iter().any(|required| required == name) {
                    self.errors.add(at, T::REQUIRED);
                }
                T::absent()
            }
        }
    }

    /// Ends the reading and refuses the fields that were not taken, as unknown or as `read_only`.
    pub(crate) fn close(self, read_only: &[&str]) {
        for name in self.fields.keys() {
            let detail = match read_only.contains(&name.as_str()) {
                true => "is read-only: leave it out",
                false => "is not a known field: check its spelling, or leave it out",
            };
            self.errors.add(format!("{}/{}", self.at, escape(name)), detail);
        }
    }
}

/// The schema in a property. A reference is to the schema of a named type, whose reader knows its schema.
pub(crate) fn schema_of(property: Option<&RefOr<Schema>>) -> &Schema {
    static NAMED: LazyLock<Schema> = LazyLock::new(Schema::default);
    match property {
        Some(RefOr::T(schema)) => schema,
        _ => &NAMED,
    }
}

/// The schema of the items of an array.
pub(crate) fn items_of(items: &ArrayItems) -> &Schema {
    match items {
        ArrayItems::RefOrSchema(schema) => schema_of(Some(schema)),
        ArrayItems::False => schema_of(None),
    }
}

/// Whether `null` is a value of this schema.
fn allows_null(schema: &RefOr<Schema>) -> bool {
    let of_type = |kind: &SchemaType| match kind {
        SchemaType::AnyValue => true,
        SchemaType::Type(kind) => *kind == Type::Null,
        SchemaType::Array(kinds) => kinds.contains(&Type::Null),
    };
    match schema {
        RefOr::Ref(_) => false,
        RefOr::T(Schema::Object(object)) => of_type(&object.schema_type),
        RefOr::T(Schema::Array(array)) => of_type(&array.schema_type),
        RefOr::T(Schema::OneOf(several)) => several.items.iter().any(allows_null),
        RefOr::T(_) => false,
    }
}
