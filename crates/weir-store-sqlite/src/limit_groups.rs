//! Limit groups.

use weir_store::LimitGroups;

use crate::SqliteStore;

impl LimitGroups for SqliteStore {}
