//! Limit groups.

use weir_store::LimitGroups;

use crate::PostgresStore;

impl LimitGroups for PostgresStore {}
