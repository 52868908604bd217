//! Copies and changes of the paces of adaptive destinations.

use weir_store::Paces;

use crate::PostgresStore;

impl Paces for PostgresStore {}
