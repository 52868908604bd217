//! Refusals within the limit, as the overview and the health of a destination show them.

use weir_api_types as types;
use weir_core::refusals::Refusals;

pub(crate) fn view(refusals: Refusals) -> types::RefusedWithinLimit {
    let (setting, value, period) = refusals.remedy.parts();
    types::RefusedWithinLimit {
        cause: refusals.cause.as_str().to_owned(),
        sends: refusals.sends,
        refused: refusals.refused,
        setting: setting.to_owned(),
        value,
        period: period.map(|period| period.to_string()),
        text: refusals.sentence(),
    }
}
