//! Whether a destination gets the events of a key in order, and when a failing one no longer holds up the others.

use std::num::NonZeroU32;

use weir_core::order::DeliveryOrder;

use super::rates::MAX_ATTEMPTS;
use crate::fields::Object;

pub(super) fn order(body: &mut Object<'_>) -> DeliveryOrder {
    let ordered = body.boolean("ordered").unwrap_or(false);
    let skip_after_attempts = body.integer("skip_after_attempts", 1..=MAX_ATTEMPTS).and_then(NonZeroU32::new);
    if skip_after_attempts.is_some() && !ordered {
        body.refuse("skip_after_attempts", "has no meaning unless `ordered` is true: set that too, or leave this out");
    }
    DeliveryOrder::new(ordered, skip_after_attempts)
}
