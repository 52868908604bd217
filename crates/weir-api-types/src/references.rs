//! References to schemas of requests, which the API declares beside their readers.

use utoipa::openapi::{Array, Ref, schema::ArrayBuilder};

macro_rules! references {
    ($($name:ident = $schema:literal;)*) => {
        $(pub(crate) fn $name() -> Ref {
            Ref::from_schema_name($schema)
        })*
    };
}

references! {
    body_format = "BodyFormat";
    delivery_id = "DeliveryId";
    period = "Period";
    shape = "Shape";
    signature_style = "SignatureStyle";
    unit = "LimitUnit";
}

// A field with a `schema_with` loses its doc comment, so these have the description of their only field.

pub(crate) fn alerts() -> Ref {
    let mut reference = Ref::from_schema_name("Alerts");
    reference.description = "The thresholds that override the thresholds of all destinations.".to_owned();
    reference
}

pub(crate) fn periods_left_out() -> Array {
    let description = "The periods whose fullest windows are not computed, because the range and the window before it have more \
        than\n200,000 sends, or because retention has deleted some of them. `max_window` has no entries of them. A shorter\n\
        range, or the audit, shows them.";
    ArrayBuilder::new().items(period()).description(Some(description)).build()
}
