//! The heads of bodies: id, type and time of the event, 108 bytes of each body. They follow from other columns and are not
//! stored, except in a database that programs of the version before may still use (`0042_body_heads.sql`).

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use sqlx::PgConnection;
use weir_core::{Timestamp, event::Event};
use weir_store::rows::body_without_head;

use crate::{schema, sealing_keys::MARK};

const STORED_BEFORE: &str = "SELECT stored_before FROM body_heads";

#[derive(Debug)]
pub(crate) struct Heads {
    /// The heads of events that were created earlier are stored.
    stored_before: Timestamp,
    /// Whether the schema says that programs which do not know bodies without heads must not start.
    marked: AtomicBool,
}

impl Default for Heads {
    fn default() -> Self {
        Self { stored_before: Timestamp::MAX, marked: AtomicBool::new(false) }
    }
}

impl Heads {
    pub(crate) async fn read(connection: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let nanos = sqlx::query_scalar(STORED_BEFORE).fetch_one(connection).await?;
        Ok(Self { stored_before: Timestamp::from_nanos(nanos), ..Self::default() })
    }

    /// The offset and the bytes to store for the body of an event.
    pub(crate) fn stored_body(&self, event: &Event) -> (i64, Bytes) {
        if event.created_at < self.stored_before {
            return (event.body.data_offset().into(), event.body.bytes().clone());
        }
        body_without_head(event)
    }

    /// Marks the schema, once bodies are stored without their heads.
    pub(crate) async fn mark(&self, connection: &mut PgConnection, now: Timestamp) -> Result<(), sqlx::Error> {
        if now >= self.stored_before && !self.marked.load(Ordering::Relaxed) {
            sqlx::query(MARK).bind(schema::WITHOUT_HEADS).execute(connection).await?;
            self.marked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
