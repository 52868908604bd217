//! The filter of a destination, as it is set, and as it is tried.

use std::borrow::Cow;

use axum::{Json, extract::State};
use serde_json::{Value, json};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        ObjectBuilder, RefOr, Schema,
        schema::{AdditionalProperties, SchemaType, Type},
    },
};
use weir_api_types as types;
use weir_core::filter::{Data, Filter};

use super::find;
use crate::{
    auth::Caller,
    errors::Errors,
    problem::ApiResult,
    readers::{
        body::{Body, PathId},
        fields::{Read, object},
        query::Query,
        texts::DestinationIdText,
    },
    state::Api,
};

/// The filter that a request sets.
pub(crate) struct FilterRequest(pub(super) Filter);

impl Read for FilterRequest {
    fn read(value: Value, _: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let read = Filter::parse(&value);
        let refuse = |faults: Vec<weir_core::filter::Fault>| {
            faults.into_iter().for_each(|fault| errors.add(format!("{at}{}", fault.pointer), fault.detail));
        };
        read.map_err(refuse).ok().map(Self)
    }
}

impl ToSchema for FilterRequest {
    fn name() -> Cow<'static, str> {
        "DataFilter".into()
    }
}

impl PartialSchema for FilterRequest {
    fn schema() -> RefOr<Schema> {
        let example = json!({"/customer/tier": {"in": ["gold", "silver"]}, "/amount": {"gte": 100}});
        // Named members would let types of clients have no others.
        let any = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
        let filter = ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some(
                "Conditions on the `data` of an event, which must all hold. A name is a JSON pointer into `data` with a \
                 value, or with an object of `eq`, `in`, `exists`, `prefix`, `gt`, `gte`, `lt` and `lte`; or `and`, `or` \
                 (arrays of filters) and `not` (a filter). At most 4 KiB, 64 conditions and 8 levels.",
            ))
            .additional_properties(Some(AdditionalProperties::RefOr(RefOr::T(any.into()))))
            .examples([example]);
        RefOr::T(Schema::Object(filter.build()))
    }
}

object! {
    /// What to try.
    pub(crate) struct FilterTrial {
        /// The filter to try. If absent, that of the destination.
        filter: Option<FilterRequest>,
        /// The `data` of an event.
        #[schema(value_type = Value, example = json!({"customer": {"tier": "gold"}, "amount": 120}))]
        data: Value,
    }
}

/// Try a filter
///
/// Says whether an event with this `data` would pass the filter, and which conditions hold. Nothing is changed. A
/// destination without a filter takes every event.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/filter/try", operation_id = "try_filter", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")), request_body = FilterTrial,
    responses((status = 200, description = "Whether the event would pass", body = types::FilterTried))
)]
pub(crate) async fn try_filter(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    _: Query<()>,
    Body(FilterTrial { filter, data }): Body<FilterTrial>,
) -> ApiResult<Json<types::FilterTried>> {
    let destination = find(&api, &caller, id).await?;
    let given = filter.map(|filter| filter.0);
    let Some(filter) = given.as_ref().or(destination.settings.filter.as_deref()) else {
        return Ok(Json(types::FilterTried { matches: true, conditions: Vec::new() }));
    };
    let json = data.to_string();
    let data = Data::new(&json);
    let tested = filter.explain(&data).into_iter();
    let conditions = tested.map(|tested| types::FilterCondition { pointer: tested.pointer, holds: tested.holds });
    Ok(Json(types::FilterTried { matches: filter.matches(&data), conditions: conditions.collect() }))
}
