//! Copies and changes of the paces of adaptive destinations.

use weir_store::Paces;

use crate::SqliteStore;

impl Paces for SqliteStore {}
