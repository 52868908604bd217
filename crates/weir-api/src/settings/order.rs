//! The delivery order of a destination: `ordered` and `skip_after_attempts`.

use std::num::NonZeroU32;

use weir_core::order::DeliveryOrder;

use super::rates::MAX_ATTEMPTS;
use crate::fields::Object;

pub(super) fn order(body: &mut Object<'_>) -> DeliveryOrder {
    let ordered = body.boolean("ordered").unwrap_or(false);
    let skip_after_attempts = body.integer("skip_after_attempts", 1..=MAX_ATTEMPTS).and_then(NonZeroU32::new);
    if skip_after_attempts.is_some() && !ordered {
        body.refuse("skip_after_attempts", "needs `ordered: true`: set it too, or omit `skip_after_attempts`");
    }
    DeliveryOrder::new(ordered, skip_after_attempts)
}
