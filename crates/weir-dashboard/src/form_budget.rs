//! The memory for forms.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
    sync::Arc,
};

use weir_core::inbound::{ByteBudget, HeldBytes};

/// The memory for the forms that are larger than what is read before the sender is known. One sender alone may have
/// five of the largest.
const BUDGET_BYTES: usize = 16 * 1024 * 1024;

/// The bytes of forms that the dashboard may hold at one time, shared by those who send them.
#[derive(Debug, Clone)]
pub(crate) struct FormBudget(Arc<ByteBudget<u64>>);

impl Default for FormBudget {
    fn default() -> Self {
        Self(ByteBudget::new(BUDGET_BYTES))
    }
}

impl FormBudget {
    /// `sender`: the name of the key, if it has one.
    pub(crate) fn open(&self, sender: Option<&str>) -> HeldBytes<u64> {
        let mut hasher = DefaultHasher::new();
        sender.hash(&mut hasher);
        self.0.open(hasher.finish())
    }
}
